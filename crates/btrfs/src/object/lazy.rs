//! State that most objects never have: a pointer until it is first used.

use std::ops::Deref;
use std::sync::OnceLock;

/// A value that is made by its first use. Asking whether there is one makes none.
#[derive(Debug)]
pub struct Lazy<T>(OnceLock<Box<T>>);

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Lazy<T> {
    /// The value, if it was used before.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.get().map(Box::as_ref)
    }
}

impl<T: Default> Deref for Lazy<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_by_its_first_use_and_not_by_asking() {
        let lazy = Lazy::<Vec<u8>>::default();
        assert!(lazy.get().is_none());
        assert!(lazy.is_empty());
        assert!(lazy.get().is_some());
    }
}

//! fakeroot and pseudo: owners that only a library in the process knows.

use super::error::{Error, Result};

/// Parts of the names of their libraries.
const LIBRARIES: [&str; 2] = ["libfakeroot", "libpseudo"];

/// Refuses to read a directory where the environment says that one of them is active, and its
/// library is not in this process: a static program sees the real owners.
pub(super) fn check() -> Result<()> {
    let Some(by) = active() else { return Ok(()) };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if LIBRARIES.iter().any(|library| maps.contains(library)) {
        return Ok(());
    }
    Err(Error::Option(format!(
        "{by} is in the environment, and its library is not in this program: the owners that it keeps cannot be \
         seen. Run a dynamically linked cowshed, or build from a tar archive, or outside of it with --all-root"
    )))
}

/// The variable that says so.
fn active() -> Option<&'static str> {
    let value = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let preload = value("LD_PRELOAD").unwrap_or_default();
    if value("FAKEROOTKEY").is_some() {
        return Some("FAKEROOTKEY");
    }
    if LIBRARIES.iter().any(|library| preload.contains(library)) {
        return Some("LD_PRELOAD");
    }
    let is_off = value("PSEUDO_DISABLED").is_some_and(|value| value != "0" && !value.is_empty());
    (value("PSEUDO_PREFIX").is_some() && !is_off).then_some("PSEUDO_PREFIX")
}

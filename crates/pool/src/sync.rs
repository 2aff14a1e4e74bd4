//! The locks of the [protocol](crate::protocol). Its loom test has another module in this place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

//! Copy-on-write file systems in user space: the library and the command.

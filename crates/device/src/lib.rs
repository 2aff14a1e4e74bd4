//! Block devices: files, memory, slices of a device; batched I/O, flush and discard.

//! Devices for tests: recording, faulty, and the enumeration of crash images.

//! How requests come and replies go. A transport moves bytes; what they mean is the server's affair.
//!
//! There is one: [`dev`], which reads and writes `/dev/fuse`. Another (FUSE over io_uring) would hand requests to
//! [`crate::proto::Request::from_parts`] and send what [`crate::server::Reply::body`] returns.

pub mod dev;

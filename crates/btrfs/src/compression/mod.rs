//! Compression of file data: the codecs, what of a file is compressed, and a look at a sample that
//! tells noise from text.

pub mod compress;
pub mod decompress;
pub mod entropy;
mod lzo;
mod lzo_encode;

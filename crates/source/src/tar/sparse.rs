//! Maps of sparse files: three versions in extended headers of PAX, and the old one in GNU's
//! header.

use super::header::decimal;

/// Stretches of one file.
const PIECES_MAX: usize = 1 << 20;

/// What extended headers say of a sparse file.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    pub name: Option<Vec<u8>>,
    pub size: Option<i64>,
    /// Versions 0.0 and 0.1: offsets and lengths.
    pub map: Vec<(i64, i64)>,
    /// Version 1.0: the map is at the head of the contents.
    pub is_in_contents: bool,
    offset: Option<i64>,
}

impl SparseRecords {
    /// A record without `GNU.sparse.`; `None`: a value that is none.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(decimal(value)?),
            b"major" => self.is_in_contents = decimal(value)? == 1,
            b"offset" => self.offset = Some(decimal(value)?),
            b"numbytes" => self.map.push((self.offset.take()?, decimal(value)?)),
            b"map" => {
                let numbers: Vec<i64> = value.split(|byte| *byte == b',').map(decimal).collect::<Option<_>>()?;
                self.map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            }
            _ => {}
        }
        (self.map.len() <= PIECES_MAX).then_some(())
    }

    pub fn is_sparse(&self) -> bool {
        self.size.is_some()
    }
}

/// Reads the map of version 1.0 from lines that `next_block` gives in blocks; the contents begin
/// behind the last block. `None`: no such map.
pub(super) fn map_in_contents<E>(
    mut next_block: impl FnMut() -> Result<Vec<u8>, E>,
) -> Result<Option<Vec<(i64, i64)>>, E> {
    let mut text: Vec<u8> = Vec::new();
    let mut numbers: Vec<i64> = Vec::new();
    loop {
        text.extend(next_block()?);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let Some(number) = decimal(&text[..end]) else {
                return Ok(None);
            };
            text.drain(..=end);
            numbers.push(number);
            let Ok(count) = usize::try_from(numbers[0]) else {
                return Ok(None);
            };
            if count > PIECES_MAX {
                return Ok(None);
            }
            if numbers.len() == 1 + 2 * count {
                let pairs = numbers[1..].chunks_exact(2);
                return Ok(Some(pairs.map(|pair| (pair[0], pair[1])).collect()));
            }
        }
        // A number is short.
        if text.len() > 64 + 512 {
            return Ok(None);
        }
    }
}

/// Checks a map: in order, apart, within the file, as long as its contents. Gives offsets and
/// lengths.
pub(super) fn check(map: &[(i64, i64)], size_bytes: u64, contents_bytes: u64) -> Option<Vec<(u64, u64)>> {
    let mut checked: Vec<(u64, u64)> = Vec::with_capacity(map.len());
    let (mut end, mut sum) = (0, 0_u64);
    for (offset, len) in map {
        let (offset, len) = (u64::try_from(*offset).ok()?, u64::try_from(*len).ok()?);
        if offset < end {
            return None;
        }
        end = offset.checked_add(len).filter(|end| *end <= size_bytes)?;
        sum = sum.checked_add(len)?;
        // GNU tar ends a map with an empty stretch at the end of the file.
        if len > 0 {
            checked.push((offset, len));
        }
    }
    (sum == contents_bytes).then_some(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_at_the_head_of_contents_may_cross_blocks() {
        let mut blocks = vec![b"0\n".to_vec(), b"1\n4096\n51".to_vec()];
        let map = map_in_contents(|| Ok::<_, ()>(blocks.pop().unwrap())).unwrap();
        assert_eq!(map, Some(vec![(4096, 510)]));
        assert_eq!(map_in_contents(|| Ok::<_, ()>(b"-1\n".to_vec())), Ok(None));
        assert_eq!(map_in_contents(|| Ok::<_, ()>(b"99999999999\n".to_vec())), Ok(None));
        assert_eq!(map_in_contents(|| Ok::<_, ()>(vec![b'1'; 512])), Ok(None));
    }

    #[test]
    fn impossible_maps_are_refused() {
        assert_eq!(check(&[(0, 5), (10, 5), (20, 0)], 20, 10), Some(vec![(0, 5), (10, 5)]));
        for (map, size, contents) in [
            (&[(0, 5), (4, 5)][..], 20, 10),
            (&[(10, 5), (0, 5)], 20, 10),
            (&[(0, 50)], 20, 50),
            (&[(-1, 5)], 20, 5),
            (&[(0, 5)], 20, 6),
            (&[(i64::MAX, i64::MAX)], 1 << 62, 1 << 62),
        ] {
            assert_eq!(check(map, size, contents), None, "{map:?}");
        }
    }
}

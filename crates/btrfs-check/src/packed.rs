//! Compressed data: does it decompress? Checksums show that the data is what was written, not that
//! it can be read.

use crate::compressed::{EXTENT_BYTES_MAX, decompress};
use crate::finding::{FindingId as Id, Site};
use crate::noted::Packed;
use crate::util::index;
use crate::walk::Cx;

/// Decompresses all extents that were noted. One whose copies cannot be read, or do not match their
/// checksums, has been reported, and may be a finding here, too.
pub(crate) fn verify(cx: &mut Cx<'_>) {
    let mut all = std::mem::take(&mut cx.packed);
    all.sort_unstable();
    all.dedup();
    let share = all.len().div_ceil(cx.opts.threads.max(1)).max(1);
    let shared = &*cx;
    let judge = |part: &[Packed]| -> Vec<(u64, String)> {
        let faults = part.iter().map(|packed| (packed.addr, fault_of(shared, packed)));
        faults.filter_map(|(addr, fault)| Some((addr, fault?))).collect()
    };
    let mut faults = Vec::new();
    std::thread::scope(|scope| {
        let parts: Vec<_> = all.chunks(share).map(|part| scope.spawn(move || judge(part))).collect();
        for part in parts {
            faults.extend(part.join().unwrap_or_default());
        }
    });
    for (addr, what) in faults {
        cx.sink.add(Id::DataUndecodable, Site::addr(addr), what);
    }
}

/// Why no copy of an extent decompresses.
fn fault_of(cx: &Cx<'_>, packed: &Packed) -> Option<String> {
    let mut bytes = vec![0; index(packed.len_bytes.min(EXTENT_BYTES_MAX))];
    let mut fault = None;
    for copy in 0..cx.vol.chunks.copies(packed.addr).max(1) {
        if cx.vol.read_copy(packed.addr, copy, &mut bytes).is_err() {
            continue;
        }
        match decompress(packed.compression, &bytes, packed.ram_bytes, cx.vol.sectorsize) {
            Ok(()) => return None,
            Err(what) => fault = Some(what),
        }
    }
    fault
}

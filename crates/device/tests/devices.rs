//! Every kind of device keeps the same promises.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use cowshed_device::{BlockDevice, Error, FileDevice, Locking, MemDevice, OpenMode, ReadOp, SliceDevice, WriteOp};

// More than one table of `MemDevice`, the last chunk a short one.
const SIZE_BYTES: u64 = 5 * 1024 * 1024 + 512;

fn each_kind(test: impl Fn(Arc<dyn BlockDevice>)) {
    let dir = tempfile::tempdir().unwrap();
    test(Arc::new(MemDevice::new("mem", SIZE_BYTES)));
    test(Arc::new(
        FileDevice::create(dir.path().join("image"), SIZE_BYTES).unwrap(),
    ));
    let whole: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("mem", SIZE_BYTES + 8192));
    test(Arc::new(SliceDevice::new(whole, 4096, SIZE_BYTES).unwrap()));
}

fn read(device: &dyn BlockDevice, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len_bytes];
    device.read_at(offset_bytes, &mut buf).unwrap();
    buf
}

/// Bytes that differ from their neighbours and from those of other seeds.
fn pattern(seed: u8, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

#[test]
fn reads_back_what_was_written_over_any_boundary() {
    each_kind(|device| {
        let mut expected = vec![0; SIZE_BYTES as usize];
        let ranges = [
            (0, 1),
            (16383, 2),
            (4194304 - 100, 40000),
            (SIZE_BYTES - 513, 513),
            (100, 70000),
            (32768, 16384),
        ];
        for (seed, (offset, len)) in ranges.into_iter().enumerate() {
            let data = pattern(seed as u8, len);
            device.write_at(offset, &data).unwrap();
            expected[offset as usize..offset as usize + len].copy_from_slice(&data);
            device.flush().unwrap();
        }
        assert!(read(&*device, 0, SIZE_BYTES as usize) == expected, "{}", device.name());
    });
}

#[test]
fn refuses_what_leaves_the_device() {
    each_kind(|device| {
        let mut buf = [0; 2];
        for offset in [SIZE_BYTES - 1, SIZE_BYTES, u64::MAX] {
            assert!(matches!(
                device.read_at(offset, &mut buf),
                Err(Error::OutOfRange { .. })
            ));
            assert!(matches!(device.write_at(offset, &buf), Err(Error::OutOfRange { .. })));
            assert!(matches!(device.discard(offset, 2), Err(Error::OutOfRange { .. })));
            let vector = [IoSlice::new(&[1]), IoSlice::new(&[2])];
            assert!(matches!(
                device.write_vectored_at(offset, &vector),
                Err(Error::OutOfRange { .. })
            ));
        }
        device.read_at(SIZE_BYTES, &mut []).unwrap();
        device.write_at(SIZE_BYTES - 2, &buf).unwrap();
    });
}

#[test]
fn batches_in_any_order_with_gaps_and_many_neighbours() {
    each_kind(|device| {
        // 3000 neighbours (more than one vectored call takes), then one alone, all written
        // backwards.
        let data = pattern(7, 3000 * 100 + 5);
        let mut writes: Vec<WriteOp> = (0..3000)
            .map(|i| WriteOp {
                offset_bytes: 1000 + i * 100,
                data: &data[i as usize * 100..][..100],
            })
            .collect();
        writes.push(WriteOp {
            offset_bytes: 2_000_000,
            data: &data[300_000..],
        });
        writes.push(WriteOp {
            offset_bytes: 500,
            data: &[],
        });
        writes.reverse();
        device.write_batch(&writes).unwrap();
        assert!(read(&*device, 1000, 300_000) == data[..300_000]);
        assert_eq!(read(&*device, 2_000_000, 5), data[300_000..]);
        assert_eq!(read(&*device, 999, 1), [0]);
        assert_eq!(read(&*device, 301_000, 1), [0]);

        let mut bufs = vec![[0; 100]; 3000];
        let mut last = [0; 5];
        let mut reads = vec![ReadOp {
            offset_bytes: 2_000_000,
            buf: &mut last,
        }];
        reads.extend(bufs.iter_mut().enumerate().map(|(i, buf)| ReadOp {
            offset_bytes: 1000 + i as u64 * 100,
            buf,
        }));
        reads.reverse();
        device.read_batch(&mut reads).unwrap();
        assert!(bufs.concat() == data[..300_000]);
        assert_eq!(last, data[300_000..]);
    });
}

#[test]
fn vectored_io_is_consecutive() {
    each_kind(|device| {
        let data = pattern(3, 50_000);
        let bufs = [
            IoSlice::new(&data[..1]),
            IoSlice::new(&[]),
            IoSlice::new(&data[1..40_000]),
            IoSlice::new(&data[40_000..]),
        ];
        device.write_vectored_at(16_000, &bufs).unwrap();
        assert!(read(&*device, 16_000, 50_000) == data);
        let (mut first, mut second) = (vec![0; 123], vec![0; 50_000 - 123]);
        device
            .read_vectored_at(16_000, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)])
            .unwrap();
        assert!([first, second].concat() == data);
    });
}

#[test]
fn discard_leaves_the_neighbours_alone() {
    each_kind(|device| {
        let data = pattern(9, 100_000);
        device.write_at(0, &data).unwrap();
        device.discard(10_000, 50_000).unwrap();
        assert!(read(&*device, 0, 10_000) == data[..10_000]);
        assert!(read(&*device, 60_000, 40_000) == data[60_000..]);
        // Unspecified by the contract; zeros for these kinds.
        assert!(read(&*device, 10_000, 50_000).iter().all(|&byte| byte == 0));
    });
}

#[test]
fn a_slice_stays_within_its_stretch() {
    let whole: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("mem", 1 << 20));
    let slice = SliceDevice::new(whole.clone(), 4096, 8192).unwrap();
    slice.write_at(0, &[1; 8192]).unwrap();
    assert_eq!(read(&*whole, 4095, 2), [0, 1]);
    assert_eq!(read(&*whole, 4096 + 8191, 2), [1, 0]);
    assert!(matches!(
        SliceDevice::new(whole, 1 << 19, 1 << 20),
        Err(Error::OutOfRange { .. })
    ));
}

#[test]
fn a_snapshot_is_independent_and_can_be_restored() {
    let device = MemDevice::new("mem", SIZE_BYTES);
    device.write_at(0, &pattern(1, 100_000)).unwrap();
    let before = read(&device, 0, SIZE_BYTES as usize);
    let snapshot = device.snapshot();
    device.write_at(50_000, &[0xff; 100_000]).unwrap();
    device.discard(0, 16384).unwrap();
    snapshot.write_at(4_500_000, &[5; 10]).unwrap();
    assert_eq!(read(&device, 4_500_000, 10), [0; 10]);
    assert_eq!(read(&snapshot, 4_500_000, 10), [5; 10]);
    snapshot.write_at(4_500_000, &[0; 10]).unwrap();
    assert!(read(&snapshot, 0, SIZE_BYTES as usize) == before);
    device.restore(&snapshot);
    assert!(read(&device, 0, SIZE_BYTES as usize) == before);
}

#[test]
fn memory_is_saved_sparse_and_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = MemDevice::new("mem", SIZE_BYTES);
    device.write_at(4_194_304, &pattern(1, 10)).unwrap();
    device.write_at(SIZE_BYTES - 5, &[7; 5]).unwrap();
    device.save(&path).unwrap();
    let file = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert_eq!(file.size_bytes(), SIZE_BYTES);
    let copy = MemDevice::copy_of("copy", &file).unwrap();
    assert_eq!(copy.used_bytes(), device.used_bytes());
    assert!(read(&copy, 0, SIZE_BYTES as usize) == read(&device, 0, SIZE_BYTES as usize));
}

#[test]
fn a_writer_is_alone_and_readers_share() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let writer = FileDevice::create(&path, SIZE_BYTES).unwrap();
    for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite] {
        let error = FileDevice::open(&path, mode).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    FileDevice::open_with(&path, OpenMode::ReadOnly, Locking::Unlocked).unwrap();
    drop(writer);

    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let _second_reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert!(matches!(
        FileDevice::open(&path, OpenMode::ReadWrite),
        Err(Error::Busy { .. })
    ));
    assert!(matches!(reader.write_at(0, &[1]), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.discard(0, 1), Err(Error::ReadOnly { .. })));
}

#[test]
fn create_spares_what_exists_and_open_names_what_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, b"mine").unwrap();
    assert!(matches!(FileDevice::create(&path, 4096), Err(Error::Io { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");

    assert!(matches!(
        FileDevice::open(dir.path(), OpenMode::ReadOnly),
        Err(Error::NotABlockDevice { .. })
    ));
    let missing = FileDevice::open(dir.path().join("none"), OpenMode::ReadOnly).unwrap_err();
    assert_eq!(missing.os_error().unwrap().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_file_that_shrank_is_an_error_not_a_short_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, SIZE_BYTES).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let (mut a, mut b) = ([0; 4096], [0; 4096]);
    assert!(device.read_at(2048, &mut a).is_err());
    let mut reads = [
        ReadOp {
            offset_bytes: 0,
            buf: &mut a,
        },
        ReadOp {
            offset_bytes: 4096,
            buf: &mut b,
        },
    ];
    assert!(device.read_batch(&mut reads).is_err());
}

#[test]
fn devices_say_whether_they_discard() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let file = Arc::new(FileDevice::create(&path, 1 << 20).unwrap());
    // The file system of temporary files makes holes; else there is nothing to ask.
    if file.discard_granularity_bytes().is_some() {
        let before = std::fs::metadata(&path).unwrap();
        assert_eq!((before.blocks(), before.len()), (0, 1 << 20), "to ask changes nothing");
        file.write_at(0, &[7; 1 << 20]).unwrap();
        file.flush().unwrap();
        let slice = SliceDevice::new(file.clone(), 4096, 1 << 19).unwrap();
        assert_eq!(slice.discard_granularity_bytes(), file.discard_granularity_bytes());
        let full = std::fs::metadata(&path).unwrap().blocks();
        slice.discard(0, 1 << 19).unwrap();
        let blocks = std::fs::metadata(&path).unwrap().blocks();
        assert_eq!(full - blocks, (1 << 19) / 512);
    }
    drop(file);
    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert_eq!(reader.discard_granularity_bytes(), None);
    let memory = MemDevice::new("memory", 1 << 20);
    assert_eq!(memory.discard_granularity_bytes(), Some(512));
    memory.set_read_only(true);
    assert_eq!(memory.discard_granularity_bytes(), None);
}

#[test]
fn scrambled_ranges_lose_what_was_written_and_nothing_else() {
    let device = MemDevice::new("memory", 1 << 20);
    device.write_at(10_000, &[7; 20_000]).unwrap();
    device.scramble(12_000, 1 << 19, 1).unwrap();
    let mut bytes = vec![0; 1 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes[10_000..12_000].iter().all(|b| *b == 7) && bytes[..10_000].iter().all(|b| *b == 0));
    assert!(bytes[12_000..30_000].chunks(8).all(|word| word != [7; 8]));
    assert!(bytes[1 << 17..].iter().all(|b| *b == 0), "never written");
}

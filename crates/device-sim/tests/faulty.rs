//! Each fault happens when it is planned, and only then.

use std::sync::Arc;

use cowshed_device::{BlockDevice, MemDevice, WriteOp};
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, On};

fn faulty() -> (FaultPlan, FaultyDevice, Arc<MemDevice>) {
    let plan = FaultPlan::new();
    let below = Arc::new(MemDevice::new("disk", 1 << 20));
    (plan.clone(), FaultyDevice::new(below.clone(), plan), below)
}

fn read(device: &dyn BlockDevice, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
    let mut buf = vec![0; len_bytes];
    device.read_at(offset_bytes, &mut buf).unwrap();
    buf
}

#[test]
fn an_outage_ends() {
    let (plan, device, _) = faulty();
    plan.add(Fault::error(On::Write, 1).times(2));
    let mut writes: Vec<bool> = (0..2).map(|_| device.write_at(0, &[1]).is_ok()).collect();
    let counts = plan.counts();
    // Neither counted nor hit.
    plan.aside(|| device.write_at(0, &[1]).unwrap());
    assert_eq!(plan.counts(), counts);
    writes.extend((0..3).map(|_| device.write_at(0, &[1]).is_ok()));
    assert_eq!(writes, [true, false, false, true, true]);
    assert_eq!(plan.counts().faults, 2);
    assert_eq!(plan.refused(), [0..1, 0..1]);
}

#[test]
fn the_nth_fails_once_or_for_ever() {
    let (plan, device, _) = faulty();
    plan.add(Fault::error(On::Write, 1));
    plan.add(Fault::error(On::Flush, 1).forever());
    let writes: Vec<bool> = (0..4).map(|_| device.write_at(0, &[1]).is_ok()).collect();
    assert_eq!(writes, [true, false, true, true]);
    let flushes: Vec<bool> = (0..4).map(|_| device.flush().is_ok()).collect();
    assert_eq!(flushes, [true, false, false, false]);
    assert_eq!((plan.counts().any(), plan.counts().faults), (8, 4));
    plan.clear();
    device.flush().unwrap();
    let error = {
        plan.add(Fault::error(On::Any, 0));
        device.read_at(512, &mut [0]).unwrap_err()
    };
    assert_eq!(error.os_error().unwrap().raw_os_error(), Some(libc::EIO), "{error}");
}

#[test]
fn devices_share_a_plan_and_batches_count_each_piece() {
    let plan = FaultPlan::new();
    let make = || FaultyDevice::new(Arc::new(MemDevice::new("disk", 4096)), plan.clone());
    let (a, b) = (make(), make());
    plan.add(Fault::error(On::Write, 3));
    a.write_at(0, &[1]).unwrap();
    let writes = [0, 1, 2, 3].map(|offset_bytes| WriteOp {
        offset_bytes,
        data: &[1],
    });
    assert!(b.write_batch(&writes).is_err());
    assert_eq!(read(&b, 0, 4), [1, 1, 0, 0]);
}

#[test]
fn writes_lie() {
    let (plan, device, below) = faulty();
    plan.add(Fault::error(On::Write, 0).with_kind(FaultKind::Lost));
    plan.add(Fault::error(On::Write, 1).with_kind(FaultKind::Torn {
        keep_bytes: 512,
        reported: false,
    }));
    plan.add(Fault::error(On::Write, 2).with_kind(FaultKind::Torn {
        keep_bytes: 512,
        reported: true,
    }));
    plan.add(Fault::error(On::Write, 3).with_kind(FaultKind::Misdirected { to_offset_bytes: 65536 }));
    device.write_at(0, &[1; 1024]).unwrap();
    assert_eq!(read(&*below, 0, 1024), [0; 1024]);
    device.write_at(0, &[2; 1024]).unwrap();
    assert_eq!(read(&*below, 0, 1024), [[2; 512], [0; 512]].concat());
    device.write_at(0, &[3; 1024]).unwrap_err();
    assert_eq!(read(&*below, 0, 1024), [[3; 512], [0; 512]].concat());
    device.write_at(0, &[4; 1024]).unwrap();
    assert_eq!(read(&*below, 0, 1024), [[3; 512], [0; 512]].concat());
    assert_eq!(read(&*below, 65536, 1024), [4; 1024]);
    device.write_at(0, &[5; 1024]).unwrap();
    assert_eq!(read(&*below, 0, 1024), [5; 1024]);
}

#[test]
fn rot_flips_one_bit_and_stays_where_it_was_put() {
    let (plan, device, below) = faulty();
    below.write_at(0, &[0x55; 8192]).unwrap();
    plan.add(
        Fault::error(On::Read, 0)
            .with_kind(FaultKind::Rotten { seed: 9 })
            .forever()
            .within(4096..8192),
    );
    assert_eq!(read(&device, 0, 4096), [0x55; 4096]);
    let rotten = read(&device, 4096, 4096);
    let flipped: u32 = rotten.iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
    assert_eq!(flipped, 1);
    assert_eq!(read(&device, 4096, 4096), rotten, "the same place rots the same way");
    assert_eq!(read(&*below, 4096, 4096), [0x55; 4096]);
}

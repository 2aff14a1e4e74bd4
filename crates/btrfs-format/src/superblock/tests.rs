//! Each refusal of a superblock, caused.

use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::features::{block_group, incompat};
use crate::items::{ChunkHead, Stripe};
use crate::key::{DiskKey, Key, KeyType};
use crate::{CorruptKind, ObjectId, Rule};

fn system_chunk(ty: u64) -> Vec<u8> {
    let key = DiskKey::from(Key::new(ObjectId(256), KeyType::CHUNK_ITEM, 22 << 20));
    let mut head = ChunkHead::new_zeroed();
    head.length.set(8 << 20);
    head.owner.set(2);
    head.stripe_len.set(64 << 10);
    head.ty.set(ty);
    head.sector_size.set(4096);
    head.num_stripes.set(1);
    let mut stripe = Stripe::new_zeroed();
    stripe.devid.set(1);
    stripe.offset.set(22 << 20);
    [key.as_bytes(), head.as_bytes(), stripe.as_bytes()].concat()
}

fn set_array(sb: &mut Superblock, array: &[u8]) {
    sb.sys_chunk_array[..array.len()].copy_from_slice(array);
    sb.sys_chunk_array_size.set(array.len() as u32);
}

fn good() -> Superblock {
    let mut sb = Superblock::new_zeroed();
    sb.magic = MAGIC;
    sb.bytenr.set(65536);
    sb.flags.set(1);
    sb.generation.set(9);
    sb.root.set(30 << 20);
    sb.chunk_root.set(22 << 20);
    sb.chunk_root_generation.set(9);
    sb.total_bytes.set(1 << 30);
    sb.bytes_used.set(1 << 20);
    sb.num_devices.set(1);
    sb.sectorsize.set(4096);
    sb.nodesize.set(16384);
    sb.leafsize_unused.set(16384);
    sb.stripesize.set(4096);
    sb.dev_item.devid.set(1);
    sb.dev_item.total_bytes.set(1 << 30);
    sb.dev_item.bytes_used.set(1 << 28);
    sb.label[..5].copy_from_slice(b"label");
    set_array(&mut sb, &system_chunk(block_group::SYSTEM));
    sb
}

fn verify(mut sb: Superblock) -> Result<Superblock, SuperblockError> {
    if let Some(ty) = sb.checksum_type() {
        sb.seal(ty);
    }
    Superblock::verify(sb.as_bytes(), Some(65536))
}

#[test]
fn valid_superblock_is_accepted_with_every_checksum_type() {
    for ty in ChecksumType::ALL {
        let mut sb = good();
        sb.csum_type.set(ty.to_raw());
        let verified = verify(sb).unwrap();
        assert_eq!(verified.label(), b"label");
        assert!(Superblock::verify(verified.as_bytes(), None).is_ok());
    }
}

#[test]
fn bytes_without_superblock_are_refused() {
    assert_eq!(
        Superblock::verify(&[0; 100], None).unwrap_err(),
        SuperblockError::Short { found: 100 }
    );
    assert_eq!(
        Superblock::verify(&[0; 4096], None).unwrap_err(),
        SuperblockError::Magic
    );
    let mut sb = good();
    sb.csum_type.set(4);
    assert_eq!(verify(sb).unwrap_err(), SuperblockError::CsumType { found: 4 });
    let mut sb = good();
    sb.seal(ChecksumType::Crc32c);
    sb.root.set(1 << 20);
    assert_eq!(
        Superblock::verify(sb.as_bytes(), None).unwrap_err(),
        SuperblockError::Csum
    );
}

#[test]
fn bad_field_is_refused_by_name() {
    type Plant = fn(&mut Superblock);
    let faults: &[(&str, Plant)] = &[
        ("bytenr", |sb| sb.bytenr.set(64 << 20)),
        ("sectorsize", |sb| sb.sectorsize.set(5000)),
        ("sectorsize", |sb| sb.sectorsize.set(2048)),
        ("sectorsize", |sb| sb.sectorsize.set(131_072)),
        ("nodesize", |sb| sb.nodesize.set(20000)),
        ("nodesize", |sb| sb.nodesize.set(2048)),
        ("nodesize", |sb| sb.nodesize.set(131_072)),
        ("nodesize", |sb| sb.incompat_flags.set(incompat::MIXED_GROUPS)),
        ("leafsize", |sb| sb.leafsize_unused.set(4096)),
        ("stripesize", |sb| sb.stripesize.set(0)),
        ("bytes_used", |sb| sb.bytes_used.set(6 * 16384 - 1)),
        ("total_bytes", |sb| sb.total_bytes.set(0)),
        ("root", |sb| sb.root.set(0)),
        ("root", |sb| sb.root.set(5000)),
        ("chunk_root", |sb| sb.chunk_root.set(0)),
        ("chunk_root", |sb| sb.chunk_root.set(1)),
        ("log_root", |sb| sb.log_root.set(4095)),
        ("root_level", |sb| sb.root_level = 8),
        ("chunk_root_level", |sb| sb.chunk_root_level = 8),
        ("log_root_level", |sb| sb.log_root_level = 255),
        ("generation", |sb| sb.generation.set(0)),
        ("chunk_root_generation", |sb| sb.chunk_root_generation.set(10)),
        ("num_devices", |sb| sb.num_devices.set(0)),
        ("dev_item.devid", |sb| sb.dev_item.devid.set(0)),
        ("dev_item.bytes_used", |sb| sb.dev_item.bytes_used.set(2 << 30)),
        ("sys_chunk_array_size", |sb| sb.sys_chunk_array_size.set(0)),
        ("sys_chunk_array_size", |sb| sb.sys_chunk_array_size.set(2049)),
    ];
    for (name, plant) in faults {
        let mut sb = good();
        plant(&mut sb);
        match verify(sb).unwrap_err() {
            SuperblockError::Field { field, .. } => assert_eq!(field, *name),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn device_item_of_another_volume_is_refused() {
    let mut sb = good();
    sb.dev_item.fsid = [1; 16];
    assert_eq!(verify(sb).unwrap_err(), SuperblockError::DeviceFsid);
    sb.metadata_uuid = [1; 16];
    sb.incompat_flags.set(incompat::METADATA_UUID);
    assert!(verify(sb).is_ok());
}

fn array_fault(array: &[u8]) -> (u64, CorruptKind) {
    let mut sb = good();
    set_array(&mut sb, array);
    match verify(sb).unwrap_err() {
        SuperblockError::SystemChunk { at_bytes, kind } => (at_bytes, kind),
        other => panic!("{other}"),
    }
}

#[test]
fn malformed_system_chunk_array_is_refused() {
    let chunk = system_chunk(block_group::SYSTEM);
    let (at, kind) = array_fault(&[chunk.as_slice(), &chunk[..90]].concat());
    assert_eq!(at, chunk.len() as u64);
    assert!(matches!(
        kind,
        CorruptKind::ItemTruncated {
            needs: 97,
            left: 90,
            ..
        }
    ));
    let (_, kind) = array_fault(&[chunk.as_slice(), &[0; 5]].concat());
    assert!(matches!(kind, CorruptKind::ItemTruncated { left: 5, .. }));
    let mut other_key = chunk.clone();
    other_key[8] = KeyType::DEV_ITEM.0;
    let (_, kind) = array_fault(&other_key);
    assert!(matches!(kind, CorruptKind::ItemField { field: "type", .. }));
    let (_, kind) = array_fault(&system_chunk(block_group::DATA));
    assert!(matches!(
        kind,
        CorruptKind::ItemField {
            field: "usage",
            rule: Rule::OneBitOf(block_group::SYSTEM),
            ..
        }
    ));
    let (_, kind) = array_fault(&system_chunk(block_group::SYSTEM | block_group::RAID1));
    assert!(matches!(
        kind,
        CorruptKind::ItemField {
            field: "num_stripes",
            ..
        }
    ));
}

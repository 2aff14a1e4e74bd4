//! Streams that are damaged and have right checksums again, received into an image: each command
//! does something sound or is an error, and the volume stays whole.

use std::fs;
use std::time::{Duration, Instant};

use btrfs_stream::{Command, Node, Time, Version, Writer};

use crate::extents::Dice;
use crate::support::{Scratch, run};

/// Streams of a run; `COWSHED_MUTATED_ROUNDS` says otherwise, `COWSHED_MUTATED_SEED` where to
/// begin.
const ROUNDS: u64 = 150;
/// Streams between two checks of the volume.
const CHECK_EACH: u64 = 25;
/// Streams into one volume.
const VOLUME_EACH: u64 = 100;
/// What a stream may take.
const STREAM_MAX: Duration = Duration::from_secs(30);
const HEADER_BYTES: usize = 17;
const COMMAND_HEADER_BYTES: usize = 10;
const COMMANDS: u64 = 60;

fn number_of(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// As the format has it: crc32c with the seed 0, not inverted.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

fn uuid(round: u64) -> [u8; 16] {
    let mut uuid = [9; 16];
    uuid[..8].copy_from_slice(&round.to_le_bytes());
    uuid
}

/// A stream in which the commands follow the format, and the names are few.
fn well_formed(dice: &mut Dice, round: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Version::V2).unwrap();
    let name = format!("home{round}");
    let (path, ctransid) = (name.as_bytes(), 9);
    let start = match dice.below(3) {
        0 if round > 0 => Command::Snapshot {
            path,
            uuid: uuid(round),
            ctransid,
            clone_uuid: uuid(dice.below(round)),
            clone_ctransid: 9,
        },
        _ => Command::Subvol {
            path,
            uuid: uuid(round),
            ctransid,
        },
    };
    writer.write(&start).unwrap();
    for _ in 0..COMMANDS {
        const NAMES: [&[u8]; 8] = [b"a", b"b", b"c", b"a/a", b"a/b", b"b/a", b"b/a/c", b""];
        let path = NAMES[dice.below(8) as usize];
        let other = NAMES[dice.below(8) as usize];
        let (offset, len) = (dice.below(40) * 4096, (1 + dice.below(9)) * 4096);
        let data = vec![dice.below(256) as u8; 1 + dice.below(9000) as usize];
        let packed = zeros_in_zlib();
        let time = Time {
            secs: dice.below(1 << 33) as i64,
            nanos: dice.below(1 << 29) as u32,
        };
        let ino = Some(256 + dice.below(100));
        let command = match dice.below(20) {
            0..=2 => Command::Mkfile { path, ino },
            3 | 4 => Command::Mkdir { path, ino },
            5 => Command::Symlink {
                path,
                ino,
                target: other,
            },
            6 => Command::Mknod {
                path,
                ino,
                node: Node {
                    rdev: dice.below(70_000),
                    mode: [0o20644, 0o60600, 0o10644, 0o140_600][dice.below(4) as usize],
                },
            },
            7 => Command::Rename { path, to: other },
            8 => Command::Link { path, existing: other },
            9 => Command::Unlink { path },
            10 => Command::Rmdir { path },
            11 => Command::SetXattr {
                path,
                name: [
                    &b"user.a"[..],
                    b"trusted.b",
                    b"btrfs.compression",
                    b"system.posix_acl_access",
                ][dice.below(4) as usize],
                data: &data[..data.len().min(200)],
            },
            12 | 13 => Command::Write {
                path,
                offset,
                data: &data,
            },
            14 => Command::Clone {
                path,
                offset,
                len,
                clone_uuid: uuid(round - dice.below(3).min(round)),
                clone_ctransid: 9,
                clone_path: other,
                clone_offset: dice.below(20) * 4096,
            },
            15 => Command::Truncate {
                path,
                size: dice.below(200_000),
            },
            16 => Command::Fallocate {
                path,
                mode: [0, 1, 3, 2][dice.below(4) as usize],
                offset,
                len,
            },
            17 => Command::EncodedWrite {
                path,
                offset,
                unencoded_file_len: 4096,
                unencoded_len: 4096,
                unencoded_offset: 0,
                compression: Some(1),
                encryption: None,
                data: &packed,
            },
            18 => Command::Fileattr {
                path,
                flags: 1 << dice.below(14),
            },
            _ => Command::Utimes {
                path,
                atime: time,
                mtime: time,
                ctime: time,
                otime: None,
            },
        };
        writer.write(&command).unwrap();
    }
    writer.write(&Command::End).unwrap();
    writer.into_inner()
}

/// 4096 zeros as zlib has them, in one stored block.
fn zeros_in_zlib() -> Vec<u8> {
    let mut out = vec![0x78, 0x01, 0x01, 0x00, 0x10, 0xff, 0xef];
    out.resize(out.len() + 4096, 0);
    // Adler-32 of zeros: the sum of their count, and 1.
    out.extend([0x10, 0x00, 0x00, 0x01]);
    out
}

/// Number and payload of each command.
fn cut(stream: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let (mut commands, mut rest) = (Vec::new(), &stream[HEADER_BYTES..]);
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        let end = COMMAND_HEADER_BYTES + len;
        let number = u16::from_le_bytes([rest[4], rest[5]]);
        commands.push((number, rest[COMMAND_HEADER_BYTES..end].to_vec()));
        rest = &rest[end..];
    }
    commands
}

fn joined(header: &[u8], commands: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut out = header.to_vec();
    for (number, payload) in commands {
        let mut command = Vec::new();
        command.extend((payload.len() as u32).to_le_bytes());
        command.extend(number.to_le_bytes());
        command.extend([0; 4]);
        command.extend(payload);
        let sum = crc(&command);
        command[6..10].copy_from_slice(&sum.to_le_bytes());
        out.extend(command);
    }
    out
}

/// Damages some commands. The one that begins the subvolume is spared most of the time.
fn mutate(dice: &mut Dice, commands: &mut Vec<(u16, Vec<u8>)>) {
    const STRANGE: [u64; 8] = [0, 1, 4095, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX - 4095, u64::MAX];
    for _ in 0..1 + dice.below(6) {
        let first = usize::from(dice.below(20) > 0).min(commands.len() - 1);
        let at = first + dice.below((commands.len() - first) as u64) as usize;
        let other = dice.below(commands.len() as u64) as usize;
        let len = commands[at].1.len() as u64;
        match dice.below(9) {
            0 | 1 if len > 0 => commands[at].1[dice.below(len) as usize] ^= 1 << dice.below(8),
            2 | 3 if len >= 8 => {
                let place = dice.below(len - 7) as usize;
                let strange = STRANGE[dice.below(8) as usize];
                commands[at].1[place..place + 8].copy_from_slice(&strange.to_le_bytes());
            }
            4 => commands[at].0 = dice.below(28) as u16,
            5 => commands[at].1.truncate(dice.below(len + 1) as usize),
            6 => commands.insert(at, commands[other].clone()),
            7 if commands.len() > 2 => drop(commands.remove(at)),
            8 => commands.swap(at, other),
            _ => {}
        }
    }
}

#[test]
fn mutated_streams_neither_panic_nor_hang_nor_harm_the_volume() {
    let seed = number_of("COWSHED_MUTATED_SEED", 1);
    let rounds = number_of("COWSHED_MUTATED_ROUNDS", ROUNDS);
    let mut scratch = Scratch::new();
    let (mut received, mut refused) = (0, 0);
    for round in 0..rounds {
        let in_volume = round % VOLUME_EACH;
        if in_volume == 0 && round > 0 {
            scratch = Scratch::new();
        }
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let stream = well_formed(&mut dice, in_volume);
        let mut commands = cut(&stream);
        assert_eq!(joined(&stream[..HEADER_BYTES], &commands), stream, "right checksums");
        if dice.below(8) > 0 {
            mutate(&mut dice, &mut commands);
        }
        let file = scratch.path("stream");
        fs::write(&file, joined(&stream[..HEADER_BYTES], &commands)).unwrap();
        let target = format!("{}:/", scratch.image.display());
        let started = Instant::now();
        let ran = run("receive -q -E 0 -f {} {}", &[&file, target.as_ref()]);
        let what = format!("seed {seed}, round {round}");
        assert!(started.elapsed() < STREAM_MAX, "{what}: {:?}", started.elapsed());
        assert!(
            (0..=2).contains(&ran.code) && !ran.err.contains("panicked"),
            "{what}: {ran:?}"
        );
        received += u64::from(ran.code < 2);
        refused += u64::from(ran.code == 2);
        if round % CHECK_EACH == CHECK_EACH - 1 || round + 1 == rounds || in_volume + 1 == VOLUME_EACH {
            let checked = run("check --check-data-csum {}", &[&scratch.image]);
            assert_eq!(checked.code, 0, "{what}: {}{}", checked.text(), checked.err);
        }
    }
    // What is no stream any more ends at that command; the others are played to their end.
    assert!(
        received > rounds / 10 && refused > 0,
        "{received} received, {refused} refused"
    );
}

//! Streams come back as they were written, and what is wrong with one is named.

#[path = "common/exercise.rs"]
mod exercise;

use btrfs_stream::{Attribute, AttributeError, COMMAND_BYTES_MAX, Command, Error, Kind, Reader, Version, Writer};
use btrfs_stream::{Node, Time, WriteError};
use exercise::{again, exercise, sealed};
use proptest::collection::vec;
use proptest::prelude::*;

/// A stream of these commands.
fn stream(version: Version, commands: &[Command<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), version).unwrap();
    for command in commands {
        writer.write(command).unwrap();
    }
    writer.into_inner()
}

/// The first error of a stream.
#[track_caller]
fn refused(bytes: &[u8]) -> Error {
    exercise(bytes).expect("the stream is refused")
}

const START: Command<'_> = Command::Subvol {
    path: b"home",
    uuid: [7; 16],
    ctransid: 9,
};
const CHMOD: Command<'_> = Command::Chmod {
    path: b"file",
    mode: 0o644,
};
/// Where the second command of a stream with `START` begins.
const SECOND: usize = 17 + 10 + 8 + 20 + 12;

/// A command with a right checksum around any payload.
fn raw(number: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    let crc = !crc32c::crc32c_append(!0, &bytes);
    bytes[6..10].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

fn with_raw(version: Version, number: u16, payload: &[u8]) -> Vec<u8> {
    [stream(version, &[START]), raw(number, payload)].concat()
}

#[test]
fn checksum_is_that_of_linux() {
    // `end` of a stream that Linux 6.18 sent.
    let end = raw(21, &[]);
    assert_eq!(end, [0, 0, 0, 0, 21, 0, 0x50, 0x6c, 0xc9, 0x9d]);
}

#[test]
fn streams_that_follow_each_other_are_read() {
    let one = stream(Version::V1, &[START, CHMOD, Command::End]);
    let two = stream(Version::V2, &[START, Command::End]);
    let both = [one, two].concat();
    let mut reader = Reader::new(&both[..]);
    let mut kinds = Vec::new();
    while let Some(item) = reader.next_command().unwrap() {
        kinds.push(item.command.kind());
    }
    use Kind::{Chmod, End, Subvol};
    assert_eq!(kinds, [Subvol, Chmod, End, Subvol, End]);
}

#[test]
fn what_is_no_stream_is_refused() {
    assert!(matches!(refused(b""), Error::Empty));
    assert!(matches!(refused(b"btrfs-strea"), Error::NotAStream { offset: 0 }));
    assert!(matches!(
        refused(b"something else, and long enough"),
        Error::NotAStream { offset: 0 }
    ));
    for version in [0, 3_u8] {
        let bytes = [b"btrfs-stream\0", &[version, 0, 0, 0][..]].concat();
        let refused = refused(&bytes).to_string();
        assert!(
            refused.contains(&format!("version {version}, known are 1 and 2")),
            "{refused}"
        );
    }
    let trailing = [stream(Version::V1, &[START, Command::End]), vec![0; 40]].concat();
    assert!(matches!(refused(&trailing), Error::NotAStream { offset: 77 }));
}

#[test]
fn truncation_is_named_wherever_it_is() {
    let whole = stream(Version::V1, &[START, CHMOD, Command::End]);
    for len in 1..whole.len() {
        match refused(&whole[..len]) {
            Error::NotAStream { offset: 0 } => assert!(len < 17),
            Error::MissingEnd { offset } => {
                assert_eq!(offset as usize, len);
                assert!([17, SECOND, whole.len() - 10].contains(&len));
            }
            Error::TruncatedHeader { offset } => assert!((1..10).contains(&(len - offset as usize))),
            Error::Truncated { site, missing_bytes } => {
                let text = format!("{site}");
                assert!(text == "subvol at byte 17" || text == "chmod at byte 67", "{text}");
                let end = if site.number == 1 { SECOND } else { whole.len() - 10 };
                assert_eq!(len + missing_bytes as usize, end);
            }
            other => panic!("at {len}: {other}"),
        }
    }
}

#[test]
fn each_flipped_bit_is_noticed() {
    let whole = stream(Version::V2, &[START, CHMOD, Command::End]);
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match refused(&bytes) {
            Error::NotAStream { .. } | Error::UnknownVersion { .. } => assert!(bit / 8 < 17),
            // 2 and 1 are neighbours of version 3 and 0; this stream is one of version 1, too.
            Error::Checksum { .. } | Error::Truncated { .. } | Error::TooLarge { .. } => assert!(bit / 8 >= 17),
            other => panic!("bit {bit}: {other}"),
        }
    }
}

#[test]
fn a_flipped_bit_is_named_with_its_command() {
    let mut bytes = stream(Version::V1, &[START, CHMOD, Command::End]);
    bytes[SECOND + 15] ^= 4;
    let text = refused(&bytes).to_string();
    assert!(text.starts_with("chmod at byte 67: checksum 0x"), "{text}");
}

#[test]
fn a_size_beyond_the_limit_is_refused_before_it_is_read() {
    let mut bytes = stream(Version::V2, &[START, CHMOD]);
    bytes[SECOND..SECOND + 4].copy_from_slice(&(COMMAND_BYTES_MAX as u32 + 1).to_le_bytes());
    let text = refused(&bytes).to_string();
    assert!(
        text.starts_with("chmod at byte 67 has 16777227 bytes, limit 16777226"),
        "{text}"
    );
}

#[test]
fn unknown_commands_are_refused_by_name() {
    let fallocate = attribute(15, b"f");
    for (version, number, words) in [
        (Version::V1, 23, "fallocate at byte 67 is unknown in version 1"),
        (Version::V2, 26, "command 26 at byte 67 is unknown in version 2"),
        (Version::V2, 0, "command 0 at byte 67 is unknown in version 2"),
    ] {
        assert_eq!(refused(&with_raw(version, number, &fallocate)).to_string(), words);
    }
}

#[test]
fn bad_attributes_are_refused_by_name() {
    let path = attribute(15, b"file");
    let mode = attribute(5, &[0; 8]);
    let cases: [(Vec<u8>, AttributeError); 7] = [
        (
            mode.clone(),
            AttributeError::Missing {
                attribute: Attribute::Path,
            },
        ),
        (
            [&path[..], &attribute(5, &[0; 7])].concat(),
            AttributeError::Size {
                attribute: Attribute::Mode,
                found_bytes: 7,
                expected_bytes: 8,
            },
        ),
        (
            [&path[..], &mode, &path].concat(),
            AttributeError::Duplicate {
                attribute: Attribute::Path,
            },
        ),
        (
            [&path[..], &mode, &attribute(25, &[0; 4])].concat(),
            AttributeError::Unknown { number: 25 },
        ),
        (
            [&path[..], &mode, &attribute(77, &[])].concat(),
            AttributeError::Unknown { number: 77 },
        ),
        (
            [&path[..], &mode, &[1]].concat(),
            AttributeError::Trailing { left_bytes: 1 },
        ),
        (
            [&path[..], &mode[..9]].concat(),
            AttributeError::PastEnd {
                attribute: Attribute::Mode,
                found_bytes: 8,
                left_bytes: 5,
            },
        ),
    ];
    for (payload, expected) in cases {
        let error = refused(&with_raw(Version::V1, 18, &payload));
        assert!(error.to_string().starts_with("chmod at byte 67: "), "{error}");
        match error {
            Error::Attribute { kind, .. } => assert_eq!(kind, expected),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_does_not_fit_a_version_is_not_written() {
    let large = vec![1; 70_000];
    let write = Command::Write {
        path: b"f",
        offset: 0,
        data: &large,
    };
    assert!(again(&write, Version::V2));
    let mut writer = Writer::new(Vec::new(), Version::V1).unwrap();
    let before = writer.get_mut().clone();
    let refused = writer.write(&write).unwrap_err();
    assert!(
        matches!(
            refused,
            WriteError::TooLong {
                found_bytes: 70_000,
                ..
            }
        ),
        "{refused}"
    );
    let fallocate = Command::Fallocate {
        path: b"f",
        mode: 3,
        offset: 0,
        len: 4096,
    };
    let refused = writer.write(&fallocate).unwrap_err().to_string();
    assert_eq!(refused, "the command of fallocate needs a newer version than 1");
    let time = Time::default();
    let utimes = Command::Utimes {
        path: b"f",
        atime: time,
        mtime: time,
        ctime: time,
        otime: Some(time),
    };
    let refused = writer.write(&utimes).unwrap_err().to_string();
    assert_eq!(refused, "otime of utimes needs a newer version than 1");
    assert_eq!(*writer.get_mut(), before, "nothing was written");
}

/// Values from which any command is made.
type Seeds = (Vec<u8>, Vec<u8>, Vec<u8>, [u8; 16], (u64, u64, u64, u64), (u32, u32));

fn command<'a>(kind: Kind, seeds: &'a Seeds) -> Command<'a> {
    let (path, other, _, uuid, numbers, _) = seeds;
    let (path, other, uuid, (a, b, c, _)) = (&path[..], &other[..], *uuid, *numbers);
    let ino = (a % 3 > 0).then_some(a);
    let node = (b % 2 > 0).then_some(Node { rdev: b, mode: c });
    match kind {
        Kind::Subvol => Command::Subvol {
            path,
            uuid,
            ctransid: a,
        },
        Kind::Snapshot => Command::Snapshot {
            path,
            uuid,
            ctransid: a,
            clone_uuid: uuid.map(|byte| !byte),
            clone_ctransid: b,
        },
        Kind::Mkfile => Command::Mkfile { path, ino },
        Kind::Mkdir => Command::Mkdir { path, ino },
        Kind::Mknod => Command::Mknod {
            path,
            ino,
            node: Node { rdev: a, mode: b },
        },
        Kind::Mkfifo => Command::Mkfifo { path, ino, node },
        Kind::Mksock => Command::Mksock { path, ino, node },
        Kind::Symlink => Command::Symlink {
            path,
            ino,
            target: other,
        },
        Kind::Rename => Command::Rename { path, to: other },
        Kind::Link => Command::Link { path, existing: other },
        Kind::Unlink => Command::Unlink { path },
        Kind::Rmdir => Command::Rmdir { path },
        _ => other_command(kind, seeds),
    }
}

fn other_command<'a>(kind: Kind, seeds: &'a Seeds) -> Command<'a> {
    let (path, other, data, uuid, (a, b, c, d), (small, smaller)) = seeds;
    let (path, other, data, uuid) = (&path[..], &other[..], &data[..], *uuid);
    let (a, b, c, d, small, smaller) = (*a, *b, *c, *d, *small, *smaller);
    let time = |secs: u64, nanos| Time {
        secs: secs as i64,
        nanos,
    };
    match kind {
        Kind::SetXattr => Command::SetXattr {
            path,
            name: other,
            data,
        },
        Kind::RemoveXattr => Command::RemoveXattr { path, name: other },
        Kind::Write => Command::Write { path, offset: a, data },
        Kind::Clone => Command::Clone {
            path,
            offset: a,
            len: b,
            clone_uuid: uuid,
            clone_ctransid: c,
            clone_path: other,
            clone_offset: d,
        },
        Kind::Truncate => Command::Truncate { path, size: a },
        Kind::Chmod => Command::Chmod { path, mode: a },
        Kind::Chown => Command::Chown { path, uid: a, gid: b },
        Kind::Utimes => Command::Utimes {
            path,
            atime: time(a, small),
            mtime: time(b, smaller),
            ctime: time(c, 1),
            otime: (d % 2 > 0).then(|| time(d, 2)),
        },
        Kind::UpdateExtent => Command::UpdateExtent {
            path,
            offset: a,
            len: b,
        },
        Kind::Fallocate => Command::Fallocate {
            path,
            mode: small,
            offset: a,
            len: b,
        },
        Kind::Fileattr => Command::Fileattr { path, flags: a },
        Kind::EncodedWrite => Command::EncodedWrite {
            path,
            offset: a,
            unencoded_file_len: b,
            unencoded_len: c,
            unencoded_offset: d,
            compression: (a % 2 > 0).then_some(small),
            encryption: (b % 3 > 0).then_some(smaller),
            data,
        },
        _ => Command::End,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn commands_come_back_as_they_were_written(
        seeds in vec((0..25_usize, (vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..5000),
            any::<[u8; 16]>(), any::<(u64, u64, u64, u64)>(), any::<(u32, u32)>())), 1..12)
    ) {
        let commands: Vec<_> = seeds.iter().map(|(kind, seeds)| command(Kind::ALL[*kind], seeds)).collect();
        for command in &commands {
            prop_assert!(again(command, Version::V2));
        }
        let bytes = stream(Version::V2, &commands);
        let mut reader = Reader::new(&bytes[..]);
        for expected in &commands {
            // `end` ends the stream: what follows begins with a header.
            if *expected == Command::End {
                break;
            }
            prop_assert_eq!(reader.next_command().unwrap().unwrap().command, *expected);
        }
    }

    #[test]
    fn noise_in_a_command_is_an_error_or_a_command(number in 0..28_u16, payload in vec(0..40_u8, 0..200)) {
        for version in [Version::V1, Version::V2] {
            exercise(&with_raw(version, number, &payload));
        }
    }

    #[test]
    fn noise_is_an_error(noise in vec(any::<u8>(), 0..300)) {
        exercise(&noise);
        exercise(&sealed(&noise));
        exercise(&[&stream(Version::V2, &[START])[..], &noise].concat());
    }
}

#[test]
fn numbers_and_names_are_one_to_one() {
    for (index, kind) in Kind::ALL.iter().enumerate() {
        assert_eq!(usize::from(kind.number()), index + 1);
        assert_eq!(Kind::from_number(kind.number()), Some(*kind));
    }
    for (index, attribute) in Attribute::ALL.iter().enumerate() {
        assert_eq!(usize::from(attribute.number()), index + 1);
        assert_eq!(Attribute::from_number(attribute.number()), Some(*attribute));
    }
    assert!(Attribute::ALL.len() == 31 && Kind::ALL.len() == 25);
}

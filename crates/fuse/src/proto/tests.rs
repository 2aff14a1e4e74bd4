use zerocopy::IntoBytes;

use super::request::forgotten;
use super::wire::*;
use super::{Dialect, Malformed, Operation, Request};

const EXT: Dialect = Dialect { setxattr_ext: true };

fn request(opcode: u32, extlen: u16, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader {
        len,
        opcode,
        unique: 7,
        nodeid: 1,
        total_extlen: extlen,
        ..Default::default()
    };
    [header.as_bytes(), &body].concat()
}

fn parse(opcode: Opcode, parts: &[&[u8]]) -> Result<String, Malformed> {
    let bytes = request(opcode as u32, 0, parts);
    Request::parse(&bytes, EXT).map(|r| format!("{:?}", r.op))
}

#[test]
fn names_end_at_their_nul() {
    assert!(parse(Opcode::Lookup, &[b"abc\0"]).is_ok());
    let bad = Err(Malformed::Name { opcode: Opcode::Lookup });
    assert_eq!(parse(Opcode::Lookup, &[b"abc"]), bad);
    assert_eq!(parse(Opcode::Lookup, &[b"\0"]), bad);
    assert_eq!(parse(Opcode::Lookup, &[b"a/b\0"]), bad);
    let bytes = request(Opcode::Symlink as u32, 0, &[b"name\0to/there\0"]);
    let Operation::Symlink { name, target } = Request::parse(&bytes, EXT).unwrap().op else {
        panic!()
    };
    assert_eq!((name, target), (&b"name"[..], &b"to/there"[..]));
}

#[test]
fn lengths_must_agree() {
    let mut bytes = request(Opcode::Statfs as u32, 0, &[]);
    bytes.push(0);
    assert_eq!(
        Request::parse(&bytes, EXT).unwrap_err(),
        Malformed::Length { says: 40, have: 41 }
    );
    assert_eq!(
        Request::parse(&bytes[..39], EXT).unwrap_err(),
        Malformed::NoHeader { have: 39 }
    );
    let write = WriteIn {
        size: 5,
        ..Default::default()
    };
    assert_eq!(
        parse(Opcode::Write, &[write.as_bytes(), b"1234"]),
        Err(Malformed::Short { opcode: Opcode::Write })
    );
    assert!(parse(Opcode::Write, &[write.as_bytes(), b"12345"]).is_ok());
    let batch = BatchForgetIn {
        count: u32::MAX,
        dummy: 0,
    };
    assert_eq!(
        parse(Opcode::BatchForget, &[batch.as_bytes()]),
        Err(Malformed::Short {
            opcode: Opcode::BatchForget
        })
    );
}

#[test]
fn forgets_come_in_batches() {
    let batch = BatchForgetIn { count: 2, dummy: 0 };
    let one = |nodeid, nlookup| ForgetOne { nodeid, nlookup };
    let bytes = request(
        Opcode::BatchForget as u32,
        0,
        &[batch.as_bytes(), one(3, 1).as_bytes(), one(4, 9).as_bytes()],
    );
    let Operation::BatchForget { nodes } = Request::parse(&bytes, EXT).unwrap().op else {
        panic!()
    };
    assert_eq!(forgotten(nodes).collect::<Vec<_>>(), [(3, 1), (4, 9)]);
}

#[test]
fn setxattr_has_two_dialects() {
    let long = SetxattrIn {
        size: 2,
        flags: 1,
        setxattr_flags: 1,
        padding: 0,
    };
    let bytes = request(Opcode::Setxattr as u32, 0, &[long.as_bytes(), b"user.a\0hi"]);
    let Operation::Setxattr { args, name, value } = Request::parse(&bytes, EXT).unwrap().op else {
        panic!()
    };
    assert_eq!((args, name, value), (long, &b"user.a"[..], &b"hi"[..]));
    let short = SetxattrInShort { size: 2, flags: 1 };
    let bytes = request(Opcode::Setxattr as u32, 0, &[short.as_bytes(), b"user.a\0hi"]);
    let op = Request::parse(&bytes, Dialect::default()).unwrap().op;
    let Operation::Setxattr { args, value, .. } = op else {
        panic!()
    };
    assert_eq!((args.flags, args.setxattr_flags, value), (1, 0, &b"hi"[..]));
}

#[test]
fn extensions_are_cut_off_and_groups_found() {
    let args = MkdirIn { mode: 0o755, umask: 0 };
    let ext = ExtHeader {
        size: 16,
        kind: EXT_GROUPS,
    };
    let groups = [1u32, 44];
    let parts: &[&[u8]] = &[args.as_bytes(), b"dir\0", ext.as_bytes(), groups.as_bytes()];
    let bytes = request(Opcode::Mkdir as u32, 2, parts);
    let got = Request::parse(&bytes, EXT).unwrap();
    assert_eq!(got.supplementary_group, Some(44));
    assert!(matches!(got.op, Operation::Mkdir { name: b"dir", .. }));
    let bytes = request(Opcode::Mkdir as u32, 200, parts);
    assert_eq!(
        Request::parse(&bytes, EXT).unwrap_err(),
        Malformed::Extension { bytes: 1600 }
    );
    let endless = ExtHeader {
        size: 0,
        kind: EXT_GROUPS,
    };
    let bytes = request(
        Opcode::Mkdir as u32,
        1,
        &[args.as_bytes(), b"dir\0", endless.as_bytes()],
    );
    assert_eq!(
        Request::parse(&bytes, EXT).unwrap_err(),
        Malformed::Extension { bytes: 8 }
    );
}

#[test]
fn parts_may_come_separately() {
    let args = WriteIn {
        size: 3,
        offset: 9,
        ..Default::default()
    };
    let header = InHeader {
        opcode: Opcode::Write as u32,
        ..Default::default()
    };
    let fixed = [args.as_bytes(), &[0; 88]].concat();
    let got = Request::from_parts(header, &fixed, Some(b"xyz"), EXT).unwrap();
    assert!(matches!(got.op, Operation::Write { data: b"xyz", args } if args.offset == 9));
}

#[test]
fn unknown_opcodes_are_not_errors() {
    let bytes = request(999, 0, &[b"whatever"]);
    assert!(matches!(
        Request::parse(&bytes, EXT).unwrap().op,
        Operation::Unsupported { opcode: 999 }
    ));
}

/// Every prefix of every request with every kind of filling parses to something or is refused.
#[test]
fn no_bytes_panic() {
    let mut seed = 0x9e3779b97f4a7c15u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut parsed, mut refused) = (0, 0);
    for &opcode in Opcode::ALL {
        for round in 0..400 {
            let len = (next() % 200) as usize;
            let body: Vec<u8> = (0..len)
                .map(|_| match round % 4 {
                    0 => next() as u8,
                    1 => (next() % 3) as u8,
                    2 => 0,
                    _ => b'a' + (next() % 4) as u8 * (next() % 2) as u8,
                })
                .collect();
            let extlen = if round % 5 == 0 { (next() % 30) as u16 } else { 0 };
            let bytes = request(opcode as u32, extlen, &[&body]);
            match Request::parse(
                &bytes,
                Dialect {
                    setxattr_ext: round % 2 == 0,
                },
            ) {
                Ok(_) => parsed += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(parsed > 1000 && refused > 1000, "{parsed} parsed, {refused} refused");
}

//! Access lists: from the text of archives to the value of the extended attribute.

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the attribute's form.
const VERSION: u32 = 2;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

/// Entries such as `user::rwx`, `group:100:r-x` or `user:name:rw-:100`, apart by commas or
/// newlines. Names without a number are looked up on this machine. `None`: the text is no list, or
/// a name is not known.
pub(super) fn from_text(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            entries.push(entry(line)?);
        }
    }
    // The kernel takes them in the order of tags and ids alone.
    entries.sort_unstable();
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, perm) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Some(value)
}

/// Tag, id and permissions.
fn entry(line: &str) -> Option<(u16, u32, u16)> {
    let mut fields = line.split(':');
    let (kind, who, perm) = (fields.next()?, fields.next()?, fields.next()?);
    let number = fields.next().unwrap_or(who);
    let id = |table| {
        number
            .parse()
            .or_else(|_| who.parse())
            .ok()
            .or_else(|| id_of(table, who))
    };
    let (tag, id) = match (kind, who) {
        ("user" | "u", "") => (0x01, NO_ID),
        ("user" | "u", _) => (0x02, id("/etc/passwd")?),
        ("group" | "g", "") => (0x04, NO_ID),
        ("group" | "g", _) => (0x08, id("/etc/group")?),
        ("mask" | "m", "") => (0x10, NO_ID),
        ("other" | "o", "") => (0x20, NO_ID),
        _ => return None,
    };
    let perm = perm.bytes().try_fold(0, |perm, byte| match byte {
        b'r' => Some(perm | 4),
        b'w' => Some(perm | 2),
        b'x' => Some(perm | 1),
        b'-' => Some(perm),
        _ => None,
    })?;
    Some((tag, id, perm))
}

/// The value of the attribute as text, with numbers alone. `None`: the value is no list.
pub(super) fn to_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut lines = Vec::new();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let perm = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let bit = |bit: u16, letter: char| if perm & bit != 0 { letter } else { '-' };
        lines.push(format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')));
    }
    Some(lines.join(","))
}

/// The number of a name in a table of this machine; what tar does, too, when it unpacks.
fn id_of(table: &str, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(table).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_the_attribute() {
        let value = from_text(b"user::rw-,user:joe:r--:1000,group::r--,mask::r--,other::---").unwrap();
        let expected: Vec<u8> = [
            &2_u32.to_le_bytes()[..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 0xe8, 3, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[0x10, 0, 4, 0, 255, 255, 255, 255],
            &[0x20, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        assert_eq!(value, expected);
        let text = "user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
        assert_eq!(to_text(&value).as_deref(), Some(text));
        assert_eq!(to_text(&value[..9]), None);
        assert_eq!(
            from_text(b"user::rw-\nuser:1000:r--\ngroup::r--\nmask::r--\nother::---\n").unwrap(),
            expected
        );
        assert_eq!(from_text(b"user:root:r").unwrap()[8..], [0; 4]);
        assert!(from_text(b"user:no such user:rwx").is_none());
        assert!(from_text(b"nobody").is_none());
    }
}

//! The attributes of one command: found, counted and measured.

use zerocopy::FromBytes;

use crate::command::Time;
use crate::error::AttributeError;
use crate::kind::{Attribute, Version};
use crate::wire::Timespec;

type Result<T> = std::result::Result<T, AttributeError>;

/// One more than the largest number of an attribute.
const SLOTS: usize = 32;

/// The values of a command's attributes, by number.
pub(crate) struct Attributes<'a> {
    slots: [Option<&'a [u8]>; SLOTS],
}

impl<'a> Attributes<'a> {
    /// Finds all attributes of a command.
    pub(crate) fn parse(mut payload: &'a [u8], version: Version) -> Result<Self> {
        let mut slots = [None; SLOTS];
        while !payload.is_empty() {
            let (number, rest) = le16(payload)?;
            let attribute = Attribute::from_number(number)
                .filter(|attribute| attribute.since() <= version)
                .ok_or(AttributeError::Unknown { number })?;
            let (value, rest) = match (attribute, version) {
                (Attribute::Data, Version::V2) => (rest, [].as_slice()),
                _ => sized(attribute, rest)?,
            };
            let slot = slots.get_mut(usize::from(number));
            match slot.and_then(|slot| slot.replace(value)) {
                None => payload = rest,
                Some(_) => return Err(AttributeError::Duplicate { attribute }),
            }
        }
        Ok(Self { slots })
    }

    fn get(&self, attribute: Attribute) -> Option<&'a [u8]> {
        self.slots.get(usize::from(attribute.number())).copied().flatten()
    }

    /// The value of an attribute of any length.
    pub(crate) fn bytes(&self, attribute: Attribute) -> Result<&'a [u8]> {
        self.get(attribute).ok_or(AttributeError::Missing { attribute })
    }

    fn array<const N: usize>(&self, attribute: Attribute) -> Result<Option<[u8; N]>> {
        let Some(value) = self.get(attribute) else {
            return Ok(None);
        };
        match value.try_into() {
            Ok(array) => Ok(Some(array)),
            Err(_) => Err(AttributeError::Size {
                attribute,
                found_bytes: value.len(),
                expected_bytes: N,
            }),
        }
    }

    pub(crate) fn uuid(&self, attribute: Attribute) -> Result<[u8; 16]> {
        self.array(attribute)?.ok_or(AttributeError::Missing { attribute })
    }

    pub(crate) fn maybe_u64(&self, attribute: Attribute) -> Result<Option<u64>> {
        Ok(self.array(attribute)?.map(u64::from_le_bytes))
    }

    pub(crate) fn u64(&self, attribute: Attribute) -> Result<u64> {
        self.maybe_u64(attribute)?.ok_or(AttributeError::Missing { attribute })
    }

    pub(crate) fn maybe_u32(&self, attribute: Attribute) -> Result<Option<u32>> {
        Ok(self.array(attribute)?.map(u32::from_le_bytes))
    }

    pub(crate) fn u32(&self, attribute: Attribute) -> Result<u32> {
        self.maybe_u32(attribute)?.ok_or(AttributeError::Missing { attribute })
    }

    pub(crate) fn maybe_time(&self, attribute: Attribute) -> Result<Option<Time>> {
        const BYTES: usize = size_of::<Timespec>();
        let bytes: Option<[u8; BYTES]> = self.array(attribute)?;
        Ok(bytes
            .and_then(|bytes| Timespec::read_from_bytes(&bytes).ok())
            .map(|time| Time {
                secs: time.secs.get(),
                nanos: time.nanos.get(),
            }))
    }

    pub(crate) fn time(&self, attribute: Attribute) -> Result<Time> {
        self.maybe_time(attribute)?.ok_or(AttributeError::Missing { attribute })
    }
}

fn le16(bytes: &[u8]) -> Result<(u16, &[u8])> {
    match bytes.split_first_chunk() {
        Some((number, rest)) => Ok((u16::from_le_bytes(*number), rest)),
        None => Err(AttributeError::Trailing {
            left_bytes: bytes.len(),
        }),
    }
}

/// An attribute's length, then its value.
fn sized(attribute: Attribute, bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (len, rest) = le16(bytes)?;
    let found_bytes = usize::from(len);
    rest.split_at_checked(found_bytes).ok_or(AttributeError::PastEnd {
        attribute,
        found_bytes,
        left_bytes: rest.len(),
    })
}

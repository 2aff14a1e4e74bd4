//! Numbers as text: bytes, uuids, points of time, sets of flags.

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A uuid in its usual form.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = hex(uuid);
    for at in [20, 16, 12, 8] {
        out.insert(at, '-');
    }
    out
}

/// The names of the bits set in `bits`; bits without a name come as `0x..`.
pub fn flag_names(bits: u64, names: &[(u64, &str)]) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = bits;
    for (bit, name) in names {
        if rest & bit != 0 {
            out.push((*name).to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 {
        out.push(format!("{rest:#x}"));
    }
    out
}
/// A point of time in UTC.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "days of 64-bit seconds are far from the ends of 64 bits"
)]
pub fn utc_text(sec: i64) -> String {
    let (days, second) = (sec.div_euclid(86400), sec.rem_euclid(86400));
    // Count days from a first of March, so that leap days come last in their year; 400 years have
    // 146097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc_text(0), "1970-01-01 00:00:00");
        assert_eq!(utc_text(1_795_263_835), "2026-11-21 12:23:55");
        assert_eq!(utc_text(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc_text(-1), "1969-12-31 23:59:59");
        utc_text(i64::MIN);
        utc_text(i64::MAX);
    }

    #[test]
    fn flags_have_names_or_are_numbers() {
        let names = [(1, "ONE"), (4, "FOUR")];
        assert_eq!(flag_names(5, &names), ["ONE", "FOUR"]);
        assert_eq!(flag_names(6, &names), ["FOUR", "0x2"]);
        assert!(flag_names(0, &names).is_empty());
    }
}

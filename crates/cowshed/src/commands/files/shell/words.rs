//! The words of a line, as sh splits them.

/// The lines of a text. Line ends in quotation marks, or behind a backslash, end none; in comments
/// there is no quotation.
pub fn lines(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let (mut start, mut quote) = (0, None);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let is_comment = text[start..].trim_start().starts_with('#');
        match (quote, c) {
            (_, '\n') if quote.is_none() || is_comment => {
                all.push(text[start..at].to_owned());
                (start, quote) = (at + 1, None);
            }
            _ if is_comment => {}
            (Some(open), c) if c == open => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => drop(chars.next()),
            (None, '\'' | '"') => quote = Some(c),
            _ => {}
        }
    }
    if start < text.len() {
        all.push(text[start..].to_owned());
    }
    all
}

/// Words apart by blanks; quotation marks and the backslash as in sh. `None`: a quotation does not
/// end.
pub fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().push(chars.next()?),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// The word that ends where the line ends, as far as it goes: where it begins, and what it says.
pub fn last_word(line: &str) -> (usize, String) {
    let mut word = String::new();
    let (mut start, mut quote) = (None, None);
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        if quote.is_none() && c.is_whitespace() {
            (start, word) = (None, String::new());
            continue;
        }
        start.get_or_insert(at);
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.push(c),
            (_, '\\') => word.extend(chars.next().map(|(_, c)| c)),
            (None, '\'' | '"') => quote = Some(c),
            (_, c) => word.push(c),
        }
    }
    (start.unwrap_or(line.len()), word)
}

/// A word as it stands in a line.
pub fn escaped(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for c in word.chars() {
        if c.is_whitespace() || matches!(c, '\'' | '"' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{escaped, last_word, lines, words};

    #[test]
    fn lines_are_split_as_by_sh() {
        let split = |line| words(line).unwrap();
        assert_eq!(split("cp  'a b' \"c\\\"d\" e\\ f ''"), ["cp", "a b", "c\"d", "e f", ""]);
        assert!(words("cp 'a").is_none());
        assert!(split("  ").is_empty());
    }

    #[test]
    fn lines_end_outside_of_quotations_only() {
        assert_eq!(lines("mv -i a b\ny\n\n ls"), ["mv -i a b", "y", "", " ls"]);
        assert_eq!(
            lines("cat 'a\nb' \"c\\\"\n\" d\\\ne\nls"),
            ["cat 'a\nb' \"c\\\"\n\" d\\\ne", "ls"]
        );
        assert_eq!(lines(" # isn't\nls\ncat 'x"), [" # isn't", "ls", "cat 'x"]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn last_word_goes_to_the_end_of_the_line() {
        let last = |line| {
            let (start, word) = last_word(line);
            (start, word)
        };
        assert_eq!(last("cp a\\ b/c"), (3, "a b/c".into()));
        assert_eq!(last("cp 'a b/"), (3, "a b/".into()));
        assert_eq!(last("cp "), (3, String::new()));
        assert_eq!(last("c"), (0, "c".into()));
        assert_eq!(words(&escaped("a 'b\\")).unwrap(), ["a 'b\\"]);
    }
}

//! Patterns of paths: globs and regular expressions.

use regex::bytes::Regex;

use super::error::{Error, Result};

/// A pattern that paths in the image match, or not.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    /// A glob without a slash is about the last name of a path.
    is_name: bool,
}

impl Pattern {
    /// A glob: `*` and `?` do not match a slash, `**` does, `[a-z]` is a set. Without a slash it is
    /// about the last name, else about the whole path.
    pub(crate) fn glob(glob: &str) -> Result<Self> {
        let is_name = !glob.trim_end_matches('/').contains('/');
        let text = glob.trim_start_matches('/').trim_end_matches('/');
        Ok(Self {
            regex: compile(&regex_of(text), glob)?,
            is_name,
        })
    }

    /// A regular expression that is found anywhere in the path.
    pub(crate) fn regex(text: &str) -> Result<Self> {
        Ok(Self {
            regex: compile(text, text)?,
            is_name: false,
        })
    }

    /// `path` has no slash at its start.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let subject = match self.is_name {
            true => path.rsplit(|byte| *byte == b'/').next().unwrap_or(path),
            false => path,
        };
        self.regex.is_match(subject)
    }
}

fn compile(text: &str, given: &str) -> Result<Regex> {
    let regex = Regex::new(&format!("(?s-u){text}"));
    regex.map_err(|error| Error::Option(format!("'{given}' is no pattern: {error}")))
}

/// The regular expression of a glob.
fn regex_of(glob: &str) -> String {
    let mut regex = String::from("^");
    let mut rest = glob;
    while let Some(first) = rest.chars().next() {
        if let Some(tail) = rest.strip_prefix("**/") {
            regex += "(?:.*/)?";
            rest = tail;
            continue;
        }
        if let Some(tail) = rest.strip_prefix("**") {
            regex += ".*";
            rest = tail;
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '*' => regex += "[^/]*",
            '?' => regex += "[^/]",
            '[' if rest.contains(']') => {
                let (set, tail) = rest.split_once(']').unwrap_or_default();
                let set = set.replace('\\', "\\\\").replace('[', "\\[");
                let set = set.strip_prefix('!').map_or(set.clone(), |not| format!("^{not}"));
                regex += &format!("[{set}]");
                rest = tail;
            }
            other => regex += &regex::escape(other.encode_utf8(&mut [0; 4])),
        }
    }
    regex + "$"
}

/// What of a source is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) exclude: Vec<Pattern>,
    pub(crate) include: Vec<Pattern>,
}

impl Filter {
    /// What is excluded is left out, unless it is included. With inclusions alone, files that match
    /// none are left out.
    pub(crate) fn keeps(&self, path: &[u8], is_dir: bool) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(path));
        if self.exclude.is_empty() {
            return self.include.is_empty() || is_dir || any(&self.include);
        }
        !any(&self.exclude) || any(&self.include)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_names_or_paths() {
        let cases = [
            ("*.pyc", "usr/lib/a.pyc", true),
            ("*.pyc", "usr/lib/a.py", false),
            ("usr/*", "usr/lib", true),
            ("usr/*", "usr/lib/a", false),
            ("/usr/**", "usr/lib/a", true),
            ("usr/**/a", "usr/a", true),
            ("usr/**/a", "usr/x/y/a", true),
            ("cache", "var/cache", true),
            ("a[0-9]?", "a1x", true),
            ("a[!0-9]", "a1", false),
            ("a.b", "axb", false),
        ];
        for (glob, path, expected) in cases {
            let found = Pattern::glob(glob).unwrap().matches(path.as_bytes());
            assert_eq!(found, expected, "{glob} {path}");
        }
        assert!(Pattern::regex("^usr/(a|b)$").unwrap().matches(b"usr/b"));
        assert!(Pattern::regex("(").is_err());
    }

    #[test]
    fn inclusions_are_exceptions_from_exclusions() {
        let mut filter = Filter {
            exclude: vec![Pattern::glob("doc/**").unwrap()],
            include: vec![Pattern::glob("copyright").unwrap()],
        };
        assert!(!filter.keeps(b"doc/a", false));
        assert!(filter.keeps(b"doc/copyright", false));
        assert!(filter.keeps(b"a", false));
        filter.exclude.clear();
        assert!(!filter.keeps(b"a", false));
        assert!(filter.keeps(b"a", true));
    }
}

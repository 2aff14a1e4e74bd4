//! `cowshed shell`: the commands on files of one image, line by line. A path is one in the image,
//! from the current directory; `host:PATH` is one of the host. Each line is a commit of its own.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use cowshed_device::OpenMode;

use super::FileCommand;
use super::session::{Base, Session, reason};
use super::side::Follow;
use crate::commands::{cat, ls, stat};

#[derive(Args, Debug)]
pub struct ShellArgs {
    /// Image file or block device
    image: PathBuf,
}

#[derive(Parser, Debug)]
#[command(name = "", multicall = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    command: Word,
}

#[derive(Subcommand, Debug)]
enum Word {
    /// Go to a directory of the image
    Cd { dir: Option<PathBuf> },
    /// Print the current directory
    Pwd,
    /// End the shell
    #[command(alias = "quit")]
    Exit,
    /// Print what there is
    Help,
    /// List directories
    Ls(Box<ls::LsArgs>),
    /// Print files
    Cat(cat::CatArgs),
    /// Show what is known of files
    Stat(stat::StatArgs),
    #[command(flatten)]
    Files(Box<FileCommand>),
}

/// The exit code is that of the last line.
pub fn run(args: &ShellArgs) -> Result<u8> {
    let mut dir = PathBuf::from("/");
    let mut code = 0;
    let is_terminal = std::io::stdin().is_terminal();
    // The image is one that opens.
    let base = |dir: &Path| Base::Shell {
        image: args.image.clone(),
        dir: dir.to_owned(),
    };
    if let Err(error) = check_dir(&base(&dir)) {
        eprintln!("cowshed shell: {error:#}");
        return Ok(1);
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if is_terminal {
            eprint!("{}:{}> ", args.image.display(), dir.display());
            std::io::stderr().flush()?;
        }
        let Some(line) = lines.next() else { return Ok(code) };
        let Some(words) = words(&line?) else {
            eprintln!("cowshed shell: a quotation that does not end");
            code = 1;
            continue;
        };
        if words.is_empty() || words[0].starts_with('#') {
            continue;
        }
        let line = match Line::try_parse_from(&words) {
            Ok(line) => line,
            Err(error) => {
                // The terminal may be gone.
                let _ = error.print();
                code = u8::from(error.use_stderr());
                continue;
            }
        };
        let here = base(&dir);
        let done = match &line.command {
            Word::Exit => return Ok(code),
            Word::Pwd => {
                println!("{}", dir.display());
                Ok(0)
            }
            Word::Help => {
                use clap::CommandFactory as _;
                println!("{}", Line::command().render_help());
                Ok(0)
            }
            Word::Cd { dir: to } => {
                let to = plain(&dir.join(to.as_deref().unwrap_or(Path::new("/"))));
                check_dir(&base(&to)).map(|()| {
                    dir = to;
                    0
                })
            }
            Word::Ls(args) => ls::run(args, &here),
            Word::Cat(args) => cat::run(args, &here),
            Word::Stat(args) => stat::run(args, &here),
            Word::Files(command) => super::run(command, &here),
        };
        code = match done {
            Ok(code) => code,
            Err(error) => {
                eprintln!("cowshed shell: {error:#}");
                1
            }
        };
    }
}

/// `ls` and the others list the current directory without a path.
fn check_dir(base: &Base) -> Result<()> {
    let session = Session::new("shell", base);
    let (_, place) = session.in_image(Path::new("."), OpenMode::ReadOnly)?;
    match place.stat(Follow::Yes) {
        Ok(stat) if stat.is_dir() => Ok(()),
        Ok(_) => bail!("cd: Not a directory"),
        Err(error) => bail!("cd: {}", reason(&error)),
    }
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            _ => {}
        }
    }
    plain
}

/// Words apart by blanks; quotation marks and the backslash as in sh. `None`: a quotation does not
/// end.
fn words(line: &str) -> Option<Vec<String>> {
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

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn lines_are_split_as_by_sh() {
        let split = |line| words(line).unwrap();
        assert_eq!(split("cp  'a b' \"c\\\"d\" e\\ f ''"), ["cp", "a b", "c\"d", "e f", ""]);
        assert!(words("cp 'a").is_none());
        assert!(split("  ").is_empty());
    }
}

//! `cowshed shell`: the commands on files of one image, line by line. A path is one in the image,
//! from the current directory; `host:PATH` is one of the host. Each line is a commit of its own.

mod complete;
mod lines;
mod words;

use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use cowshed_device::OpenMode;

use lines::Lines;
use words::words;

use super::FileCommand;
use super::session::{Answers, Base, Session, reason};
use super::side::Follow;
use crate::commands::{cat, ls, stat};

#[derive(Args, Debug)]
pub struct ShellArgs {
    /// Image file or block device, or a part of one: DISK:PARTITION, DISK:@OFFSET
    image: PathBuf,
}

#[derive(Parser, Debug)]
#[command(
    name = "",
    multicall = true,
    disable_help_subcommand = true,
    args_override_self = true
)]
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

/// What the shell knows between lines.
struct Shell<'a> {
    image: &'a Path,
    dir: PathBuf,
    answers: Rc<dyn Answers>,
}

/// The exit code is that of the last line.
pub fn run(args: &ShellArgs) -> Result<u8> {
    let lines = Rc::new(RefCell::new(Lines::new(commands())?));
    let mut shell = Shell {
        image: &args.image,
        dir: PathBuf::from("/"),
        answers: lines.clone(),
    };
    // The image is one that opens.
    if let Err(error) = check_dir(&shell.base("/")) {
        crate::people::warn(format_args!("cowshed shell: {error:#}"));
        return Ok(1);
    }
    let mut code = 0;
    loop {
        let Some(line) = lines.borrow_mut().next(&shell.base("."), &shell.prompt())? else {
            break;
        };
        let Some(words) = words(&line) else {
            crate::people::warn("cowshed shell: a quotation that does not end");
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
        if matches!(line.command, Word::Exit) {
            break;
        }
        code = shell.run(line.command).unwrap_or_else(|error| {
            crate::people::warn(format_args!("cowshed shell: {error:#}"));
            1
        });
    }
    Ok(code)
}

impl Shell<'_> {
    fn base(&self, dir: &str) -> Base {
        Base::Shell {
            image: self.image.to_owned(),
            dir: plain(&self.dir.join(dir)),
            answers: None,
        }
    }

    fn prompt(&self) -> String {
        format!("{}:{}> ", self.image.display(), self.dir.display())
    }

    fn run(&mut self, word: Word) -> Result<u8> {
        let here = Base::Shell {
            image: self.image.to_owned(),
            dir: self.dir.clone(),
            answers: Some(self.answers.clone()),
        };
        match word {
            Word::Exit => Ok(0),
            Word::Pwd => {
                crate::people::say(self.dir.display());
                Ok(0)
            }
            Word::Help => {
                use clap::CommandFactory as _;
                crate::people::say(Line::command().render_help());
                Ok(0)
            }
            Word::Cd { dir } => {
                let to = plain(&self.dir.join(dir.as_deref().unwrap_or(Path::new("/"))));
                let there = Base::Shell {
                    image: self.image.to_owned(),
                    dir: to.clone(),
                    answers: None,
                };
                check_dir(&there)?;
                self.dir = to;
                Ok(0)
            }
            Word::Ls(args) => ls::run(&args, &here),
            Word::Cat(args) => cat::run(&args, &here),
            Word::Stat(args) => stat::run(&args, &here),
            Word::Files(command) => super::run(&command, &here),
        }
    }
}

/// The words that a line may begin with.
fn commands() -> Vec<String> {
    use clap::CommandFactory as _;
    let line = Line::command();
    line.get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect()
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

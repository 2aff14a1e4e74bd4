//! Lines from a terminal, with editing, history and completion, or from a pipe.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::super::session::Base;
use super::complete::{complete, history_file};

/// Lines of earlier shells that are kept.
const HISTORY_LINES: usize = 1000;

/// Where lines come from.
pub enum Lines {
    Terminal(Terminal),
    Pipe,
}

/// A terminal with an editor.
pub struct Terminal {
    editor: Box<Editor<Completion, DefaultHistory>>,
    history: Option<PathBuf>,
    commands: Vec<String>,
}

impl Lines {
    /// `commands`: the words that a line may begin with.
    pub fn new(commands: Vec<String>) -> Result<Lines> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Pipe);
        }
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Box::new(Editor::with_config(config)?);
        let history = history_file();
        if let Some(path) = &history {
            // There is none at first.
            let _ = editor.load_history(path);
        }
        Ok(Lines::Terminal(Terminal {
            editor,
            history,
            commands,
        }))
    }

    /// The next line; `None` at the end. Errors: the terminal or pipe fails.
    pub fn next(&mut self, base: &Base, prompt: &str) -> Result<Option<String>> {
        let Terminal {
            editor,
            history,
            commands,
        } = match self {
            // Not locked for longer: a command may read an answer from it.
            Lines::Pipe => return Ok(std::io::stdin().lines().next().transpose()?),
            Lines::Terminal(terminal) => terminal,
        };
        editor.set_helper(Some(Completion {
            base: base.clone(),
            commands: commands.clone(),
        }));
        loop {
            return match editor.readline(prompt) {
                Ok(line) => {
                    if editor.add_history_entry(line.as_str())?
                        && let Some(path) = history
                    {
                        // A history that cannot be kept keeps nothing from being done.
                        let _ = path.parent().map(std::fs::create_dir_all);
                        let _ = editor.append_history(path);
                    }
                    Ok(Some(line))
                }
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Completes names of commands and files.
pub struct Completion {
    base: Base,
    commands: Vec<String>,
}

impl Completer for Completion {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(complete(&self.base, &self.commands, &line[..pos]))
    }
}

impl Hinter for Completion {
    type Hint = String;
}
impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

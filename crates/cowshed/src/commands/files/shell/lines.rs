//! Lines from a terminal, with editing, history and completion, or from a pipe.

use std::cell::RefCell;
use std::collections::VecDeque;
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

use super::super::session::{Answers, Base};
use super::complete::{complete, history_file};
use super::words::lines;
use crate::people;

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
    /// Lines of a pasted text behind the one that is being run.
    ahead: VecDeque<String>,
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
            ahead: VecDeque::new(),
            history,
            commands,
        }))
    }

    /// The next line; `None` at the end. Errors: the terminal or pipe fails.
    pub fn next(&mut self, base: &Base, prompt: &str) -> Result<Option<String>> {
        match self {
            // Not locked for longer: a command may read an answer from it.
            Lines::Pipe => Ok(std::io::stdin().lines().next().transpose()?),
            Lines::Terminal(terminal) => terminal.next(base, prompt),
        }
    }

    /// The answer to a question of a command. What was typed or pasted behind the command is an
    /// answer, as on a terminal without an editor. `None`: there is none.
    fn answer(&mut self, question: &str) -> Option<String> {
        let terminal = match self {
            Lines::Pipe => {
                people::warn_part(question);
                return std::io::stdin().lines().next()?.ok();
            }
            Lines::Terminal(terminal) => terminal,
        };
        if let Some(line) = terminal.ahead.pop_front() {
            people::warn(format_args!("{question}{line}"));
            return Some(line);
        }
        // Answers are neither completed nor kept. An interrupt is none.
        terminal.editor.set_helper(None);
        let typed = terminal.editor.readline(question).ok()?;
        let mut typed = lines(&typed).into_iter();
        let answer = typed.next();
        terminal.ahead.extend(typed);
        answer
    }
}

/// The lines are borrowed by the shell's loop only while no command runs.
impl Answers for RefCell<Lines> {
    fn answer(&self, question: &str) -> Option<String> {
        self.borrow_mut().answer(question)
    }
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lines::Terminal(_) => "terminal",
            Lines::Pipe => "pipe",
        })
    }
}

impl Terminal {
    fn next(&mut self, base: &Base, prompt: &str) -> Result<Option<String>> {
        if let Some(line) = self.ahead.pop_front() {
            return Ok(Some(line));
        }
        self.editor.set_helper(Some(Completion {
            base: base.clone(),
            commands: self.commands.clone(),
        }));
        let typed = loop {
            match self.editor.readline(prompt) {
                Ok(typed) => break typed,
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        if self.editor.add_history_entry(typed.as_str())?
            && let Some(path) = &self.history
        {
            // A history that cannot be kept keeps nothing from being done.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = self.editor.append_history(path);
        }
        self.ahead.extend(lines(&typed));
        Ok(self.ahead.pop_front().or_else(|| Some(String::new())))
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

//! `btrfs help`: the commands, and with `--full` their options.

use clap::{Args, Command};

use crate::people::say_part;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct HelpArgs {
    /// With the options of all commands
    #[arg(long)]
    full: bool,
    /// Ignored, as by btrfs(8)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<std::ffi::OsString>,
}

/// Prints the help of the program, whose description is `command`. Returns the exit code.
pub fn run(args: &HelpArgs, mut command: Command) -> u8 {
    // Arguments of commands are described only then.
    command.build();
    let text = match args.full {
        true => full(&mut command),
        false => command.render_help().to_string(),
    };
    say_part(text);
    0
}

/// The help of a command and of all below it.
fn full(command: &mut Command) -> String {
    let mut text = command.render_help().to_string();
    for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
        text += "\n";
        text += &full(below);
    }
    text
}

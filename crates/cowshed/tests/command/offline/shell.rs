//! `cowshed shell`: lines from a pipe, and from a terminal with completion and history.

use std::fs;
use std::process::Command;

use cowshed_harness::{limit, need};

use super::here;
use crate::support::{COMMAND_MAX, COWSHED, Scratch};

#[test]
fn shell_runs_lines_from_a_pipe() {
    let volume = Scratch::filled();
    fs::write(volume.path("f"), "from the host\n").unwrap();
    let lines = "cd dir\nmkdir 'a b'\ncp host:f 'a b/f'\ncat 'a b/f'\nrm none\npwd\nls\nmv hello ../moved\nexit\n";
    fs::write(volume.path("lines"), lines).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" shell volume.img <lines", COWSHED]);
    command.current_dir(volume.dir.path());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "from the host\n/dir\na b\nhello\nlink\nsub\n", "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "cowshed rm: cannot remove 'none': No such file or directory\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(here(&volume, "cat I:/moved").ok().text(), "hello\n");
}

/// Types on a terminal, which script(1) makes: all at once, before the commands have run. Gives
/// what is shown.
fn typed(volume: &Scratch, keys: &str) -> String {
    fs::write(volume.path("keys"), keys).unwrap();
    let line = format!(
        "(sleep 0.7; cat keys; sleep 2) |
         XDG_STATE_HOME=$PWD/state TERM=xterm script -qec '{COWSHED} shell volume.img' /dev/null"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(volume.dir.path());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn names_are_completed_and_lines_come_back_in_the_next_shell() {
    let Some(()) = need::tool("script") else { return };
    let volume = Scratch::filled();
    fs::write(volume.path("from the host"), "host\n").unwrap();
    here(&volume, "mkdir I:/only").ok();
    // Commands, directories and files; then names of the host, with blanks.
    let shown = typed(
        &volume,
        "ca\tdi\thel\t\nmkdir only/new\ncp host:from\t only/n\t\nexit\n",
    );
    assert!(shown.contains("\nhello\r\n"), "{shown}");
    assert_eq!(here(&volume, "ls I:/only/new").ok().text(), "from the host\n");
    let kept = fs::read_to_string(volume.path("state/cowshed/shell_history")).unwrap();
    assert!(
        kept.contains("cat dir/hello") && kept.contains("mkdir only/new"),
        "{kept}"
    );
    // Up, up, up: the first of `cat`, `mkdir`, `cp`, `exit` is four lines above.
    typed(&volume, "rm -r only/new\n\x1b[A\x1b[A\x1b[A\x1b[A\nexit\n");
    assert_eq!(
        here(&volume, "ls I:/only").ok().text(),
        "new\n",
        "made again from the history"
    );
    volume.assert_clean();
}

/// A command waits for a FIFO of the host meanwhile.
#[test]
fn lines_typed_while_a_command_runs_are_run_after_it() {
    for tool in ["script", "mkfifo"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let volume = Scratch::filled();
    // The end of the FIFO comes after all is typed; the last line, after the shell reads again.
    let line = format!(
        "mkfifo pipe
         (sleep 0.7; printf 'cp host:pipe got\\n'; sleep 0.7; printf 'mkdir ahead\\n'; sleep 0.3; printf 'cd ah\\t\\nmkdir next\\n'
          sleep 0.3; echo out of the fifo > pipe; sleep 1.5; printf 'exit\\n'; sleep 1) |
         XDG_STATE_HOME=$PWD/state TERM=xterm script -qec '{COWSHED} shell volume.img' /dev/null"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(volume.dir.path());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(here(&volume, "cat I:/got").ok().text(), "out of the fifo\n", "{shown}");
    assert_eq!(here(&volume, "ls I:/ahead").ok().text(), "next\n", "{shown}");
    volume.assert_clean();
}

/// One write to the terminal has commands and the answers to their questions.
#[test]
fn answers_pasted_behind_their_command_are_answers() {
    let Some(()) = need::tool("script") else { return };
    let volume = Scratch::filled();
    let made = ["from", "to", "kept", "gone", "stays"].map(|name| format!("mkdir I:/{name}"));
    made.iter().for_each(|line| drop(here(&volume, line).ok()));
    for (name, text) in [("f", "new"), ("g", "old")] {
        fs::write(volume.path(name), text).unwrap();
    }
    for name in ["to/f", "kept/f", "gone/f", "stays/f"] {
        here(&volume, &format!("cp g I:/{name}")).ok();
    }
    let lines = "cp -i host:f to\ny\ncp -i host:f kept\nn\nrm -i gone/f\ny\nrm -ri stays\nn\nmkdir behind\n";
    // As keys that are typed, and as a terminal hands over a text that is pasted.
    for keys in [format!("{lines}exit\n"), format!("\x1b[200~{lines}\x1b[201~\nexit\n")] {
        let shown = typed(&volume, &keys);
        let cat = |path: &str| here(&volume, &format!("cat I:/{path}")).ok().text();
        assert_eq!(
            [cat("to/f"), cat("kept/f"), cat("stays/f")],
            ["new", "old", "old"],
            "{shown}"
        );
        assert_eq!(here(&volume, "ls I:/gone").ok().text(), "", "{shown}");
        here(&volume, "rmdir I:/behind").ok();
        assert!(shown.contains("remove regular file 'gone/f'? "), "{shown}");
        assert!(
            !shown.contains("unrecognized"),
            "no answer is taken for a command: {shown}"
        );
        here(&volume, "cp g I:/gone/f").ok();
        here(&volume, "cp g I:/to/f").ok();
    }
    // Nor are answers kept among the lines.
    let kept = fs::read_to_string(volume.path("state/cowshed/shell_history")).unwrap();
    assert!(!kept.lines().any(|line| line == "y" || line == "n"), "{kept}");
    volume.assert_clean();
}

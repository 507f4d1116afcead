package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/watch/follow"
)

// shoal top. One goroutine runs what is here, that of the command. It reads files of the run, asks
// its launcher, and waits for keys of the terminal.

// NewTopCommand returns the command shoal top.
func NewTopCommand() *cobra.Command {
	var once, asJSON bool
	cmd := &cobra.Command{
		Use:   "top JOB",
		Short: "Watch a job in the terminal",
		Long: cli.Help(`Show how a job trains, anew each second: its steps and where their time goes, loss and samples a
second, workers, what has happened last, and changes with what was predicted and measured. The key q
ends the command, and the job goes on. Where the output is no terminal, all is shown once.

JOB is the name of a running job, else of its newest run, or the directory of a run. It is shown as
far as the directory can be read, and what is missing is said.`, cli.ExitCodes, "watch"),
		Example: `  shoal top train
  shoal top train --once
  shoal top train --json | jq .state.word
  shoal top ~/.local/state/shoal/runs/train-3`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openWatched(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				if err := f.Poll(cmd.Context(), time.Now()); err != nil {
					return err
				}
				text := json.NewEncoder(out)
				text.SetEscapeHTML(false)
				return text.Encode(f.Run.View(unixSeconds(time.Now())))
			}
			screen := openTerminal(out, os.Stdin)
			if once || screen == nil {
				if err := f.Poll(cmd.Context(), time.Now()); err != nil {
					return err
				}
				_, err := io.WriteString(out,
					screenText(f.Run.View(unixSeconds(time.Now())), 0, 0))
				return err
			}
			defer screen.close()
			return watchRun(cmd.Context(), f, screen)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "show all once, and end")
	cmd.Flags().BoolVar(&asJSON, "json", false,
		"print all that is known as one JSON object, and end")
	return cmd
}

// openWatched finds a run, which may be over, torn or of another version. It asks the launchers of
// this machine.
func openWatched(ctx context.Context, name string) (*follow.Follower, error) {
	dir, live, silent, err := findRun(ctx, name)
	switch {
	case err == nil:
		return follow.Open(dir, live, silent)
	case ctx.Err() == nil && strings.ContainsRune(name, filepath.Separator):
		return follow.Open(name, nil, nil)
	}
	return nil, err
}

// unixSeconds returns a time in seconds since 1970.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }

// watchRun shows a run on the terminal anew each second, until the key q, Ctrl-C or the end of the
// run; what was shown last stays on the terminal.
func watchRun(ctx context.Context, f *follow.Follower, screen *terminal) error {
	for {
		if err := f.Poll(ctx, time.Now()); err != nil {
			return err
		}
		view := f.Run.View(unixSeconds(time.Now()))
		width, height := screen.size()
		text := screenText(view, width, height-1)
		if view.State.Over {
			screen.close()
			_, err := io.WriteString(screen.out, screenText(view, width, 0))
			return err
		}
		screen.draw(text + "q quits")
		quit, err := screen.waitKey(ctx, time.Second)
		if quit || err != nil {
			return err
		}
	}
}

// terminal is a terminal that shows a screen in place of what was there, which close brings back.
type terminal struct {
	out    io.Writer
	file   *os.File // the same
	keys   *os.File // nil = no keys come
	before *unix.Termios
	closed bool
}

// openTerminal takes the terminal that out is; nil = it is none that can be drawn on. keys is where
// keys come from. The caller closes it.
func openTerminal(out io.Writer, keys *os.File) *terminal {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	t := &terminal{out: out, file: file}
	if before, err := unix.IoctlGetTermios(int(keys.Fd()), unix.TCGETS); err == nil {
		now := *before
		now.Lflag &^= unix.ICANON | unix.ECHO
		if unix.IoctlSetTermios(int(keys.Fd()), unix.TCSETS, &now) == nil {
			t.keys, t.before = keys, before
		}
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	return t
}

// close brings back what the terminal showed before. A second call does nothing.
func (t *terminal) close() {
	if t.closed {
		return
	}
	t.closed = true
	if t.before != nil {
		_ = unix.IoctlSetTermios(int(t.keys.Fd()), unix.TCSETS, t.before)
	}
	fmt.Fprint(t.out, "\x1b[?25h\x1b[?1049l")
}

// size returns the columns and rows of the terminal.
func (t *terminal) size() (width, height int) {
	w, err := unix.IoctlGetWinsize(int(t.file.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 24
	}
	return int(w.Col), int(w.Row)
}

// draw shows a text of lines.
func (t *terminal) draw(text string) {
	text = strings.ReplaceAll(text, "\n", "\x1b[K\r\n")
	fmt.Fprint(t.out, "\x1b[H"+text+"\x1b[K\x1b[J")
}

// waitKey waits for the key q for a time, in parts in which it looks whether ctx has ended. An
// error is the cause of that.
func (t *terminal) waitKey(ctx context.Context, wait time.Duration) (quit bool, err error) {
	const part = 100 * time.Millisecond
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		var list []unix.PollFd
		if t.keys != nil {
			list = []unix.PollFd{{Fd: int32(t.keys.Fd()), Events: unix.POLLIN}}
		}
		n, err := unix.Poll(list, int(part/time.Millisecond))
		if err != nil || n == 0 {
			continue
		}
		key := make([]byte, 16)
		n, err = t.keys.Read(key)
		if err != nil || n == 0 {
			t.keys = nil // the terminal of the keys is gone
			continue
		}
		if strings.ContainsAny(string(key[:n]), "qQ\x04") {
			return true, nil
		}
	}
	return false, nil
}

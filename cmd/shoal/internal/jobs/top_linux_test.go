package jobs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openTTY returns a terminal, and the end at which what is written to it can be read. The end of
// the test closes both.
func openTTY(t *testing.T) (tty, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty, screen
}

// What is shown once stays on the terminal, which is not drawn on.
func TestTopOnceOnATerminal(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"job.json":    `{"spec":{"name":"train"},"version":"1.0","started":"2026-11-26T16:27:00Z"}`,
		"result.json": `{"ok":true,"seconds":3}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("TERM", "xterm")
	tty, screen := openTTY(t)
	cmd := NewTopCommand()
	cmd.SetOut(tty)
	cmd.SetArgs([]string{dir, "--once"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	text, _ := io.ReadAll(screen) // a terminal that is closed ends with an error
	if !strings.Contains(string(text), "ended well") || strings.Contains(string(text), "\x1b[?") {
		t.Errorf("the terminal got %q", text)
	}
}

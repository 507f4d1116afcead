package launcher

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/job"
)

// noteOf is a writer that calls seen once, with the first line that has a text.
type noteOf struct {
	text string
	once sync.Once
	seen func(line string)
}

// Write looks for the text.
func (n *noteOf) Write(p []byte) (int, error) {
	if strings.Contains(string(p), n.text) {
		n.once.Do(func() { n.seen(string(p)) })
	}
	return len(p), nil
}

// Who waits for a long import of --prefork hears what for. The import of this test ends when its
// note is seen.
func TestSlowImportIsTold(t *testing.T) {
	short, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	t.Setenv("XDG_RUNTIME_DIR", short)
	client, err := filepath.Abs("../python")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	gate, script := filepath.Join(dir, "gate"), filepath.Join(dir, "script.py")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{script: "",
		filepath.Join(dir, "slow_module.py"): fmt.Sprintf("open(%q).read()\n", gate)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var told string
	notes := &noteOf{text: "slow_module", seen: func(line string) {
		told = line
		if err := os.WriteFile(gate, nil, 0); err != nil { // waits for the module, which reads
			t.Error(err)
		}
	}}
	result, err := Run(t.Context(), RunConfig{Spec: job.Spec{Name: "slow", Workers: 1,
		Command: []string{"python3", script}, Prefork: []string{"slow_module"},
		Env: map[string]string{"PYTHONPATH": client + ":" + dir}},
		Dir: t.TempDir(), Stdout: io.Discard, Stderr: notes, slowImport: time.Nanosecond})
	if err != nil || !result.OK {
		t.Fatalf("%+v, %v", result, err)
	}
	want := "shoal: workers wait for the import of slow_module (--prefork), which has taken more " +
		"than 1ns; its output is in "
	if !strings.Contains(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

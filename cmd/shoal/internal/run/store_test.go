package run

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStoreFlags checks which texts of --store are servers, which are folders, and which are
// refused.
func TestStoreFlags(t *testing.T) {
	for at, want := range map[string]string{
		"db:4222":        "write nats://db:4222 for servers, ./db:4222 for a folder",
		"nats://":        "write nats://HOST:4222 or tls://HOST:4222, or a folder",
		"http://db:4222": "write nats://HOST:4222 or tls://HOST:4222, or a folder",
		"record":         "",
		"./db:4222/x":    "",
		"/a/b":           "",
		"nats://db:4222": "",
	} {
		f := storeFlags{at: at}
		remote, err := f.isRemote()
		if want == "" && (err != nil || remote != strings.HasPrefix(at, "nats:")) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("--store %s: %v, %v; want %q", at, remote, err, want)
		}
	}
}

// TestEmptyFlags: what a shell's variable that is not set leaves of a flag is refused.
func TestEmptyFlags(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, flag := range []string{"listen", "hosts", "store", "log-dir", "end-file", "file",
		"name", "token-file", "authority-file", "store-creds"} {
		cmd := NewCommand()
		cmd.SetArgs([]string{"--" + flag, "", "--", "true"})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "--"+flag+" is empty") {
			t.Errorf("--%s: %v", flag, err)
		}
	}
}

// TestDryRunChecksFlags: what --dry-run prints is a job that the same flags can run, as far as that
// shows without it.
func TestDryRunChecksFlags(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	file := filepath.Join(dir, "short")
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, flags := range map[string][]string{
		"--status-token-file: open /none:": {"--status-listen", ":0", "--status-token-file",
			"/none"},
		"short: its token must be one line": {"--status-listen", ":0", "--status-token-file", file},
		"--store-creds: open /none:":        {"--store", "nats://db", "--store-creds", "/none"},
		dir + " is a folder":                {"--store", "nats://db", "--store-creds", dir},
		"--store " + file + ": ":            {"--store", file},
		"--log-dir " + file + "/runs: ":     {"--log-dir", file + "/runs"},
		"--token-file " + dir + " is a":     {"--listen", ":0", "--token-file", dir},
		"--token-file " + file + ": ":       {"--listen", ":0", "--token-file", file + "/token"},
		"--slots -1: a host":                {"--listen", ":0", "--slots", "-1"},
		"--grow is about other hosts":       {"--grow"},
		"is not HOST:SLOTS":                 {"--hosts", "node1"},
		"-n 4 is more than":                 {"-n", "4", "--hosts", "node1:2"},
		"they need --store":                 {"--store-creds", "file"},
		"it needs --store nats":             {"--store", "/a", "--store-creds", "file"},
		"--store db:4222: write nats":       {"--store", "db:4222"},
		"--log-dir is empty":                {"--log-dir", ""},
		"--kind: ":                          {"--kind", "a b"},
		"--metrics is empty":                {"--metrics", ""},
		"--metrics foo":                     {"--metrics", "foo"},
		"--status-listen foo":               {"--status-listen", "foo", "--status-token-file", "x"},
		"--status-token-file FILE":          {"--status-listen", ":0"},
		"--end-file /none/end: there":       {"--end-file", "/none/end"},
		"--authority-file: open /none:":     {"--listen", ":0", "--authority-file", "/none"},
		"":                                  {"--listen", ":0", "--store", "/a", "--grow"},
	} {
		var out strings.Builder
		cmd := NewCommand()
		cmd.SetArgs(append(flags, "--dry-run", "--", "true"))
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		printed := strings.Contains(out.String(), "command:")
		if want == "" && (err != nil || !printed) || want != "" &&
			(err == nil || printed || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q; printed: %s", flags, err, want, &out)
		}
	}
}

// TestAgentChecksFlags: an agent refuses at once what it would need only while it serves, or when
// its host leads the job.
func TestAgentChecksFlags(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for want, flags := range map[string][]string{
		"--store-creds: open /none:": {"--store-creds", "/none"},
		"--status-token-file: open":  {"--status-listen", ":0", "--status-token-file", "/none"},
		"--log-dir /dev/null/runs: ": {"--log-dir", "/dev/null/runs"},
		"--name is empty":            {"--name", ""},
		"--end-file is empty":        {"--end-file", ""},
	} {
		cmd := NewAgentCommand()
		cmd.SetArgs(append(flags, "--join", "127.0.0.1:1", "--token-file", "/missing"))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", flags, err, want)
		}
	}
}

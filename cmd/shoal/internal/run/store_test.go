package run

import (
	"io"
	"strings"
	"testing"
)

// TestStoreFlags checks which texts of --store are servers, which are folders, and which are
// refused.
func TestStoreFlags(t *testing.T) {
	for at, want := range map[string]string{
		"db:4222":        "write nats://db:4222 for servers, ./db:4222 for a folder",
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
	for _, flag := range []string{"listen", "hosts", "store", "log-dir", "end-file"} {
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

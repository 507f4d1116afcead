package run

import (
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

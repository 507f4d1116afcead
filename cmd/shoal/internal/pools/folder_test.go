package pools

import (
	"os"
	"path/filepath"
	"testing"
)

// What a pool remembers in its folder is never gone while it is written anew: it is written beside
// the old file, which a keeper that is killed, or has no room, leaves as it was.
func TestRememberedFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	path, before := filepath.Join(dir, hostFile), filepath.Join(dir, "before")
	for _, name := range []string{"node1", "node2"} {
		if err := remember(dir, hostFile, name); err != nil {
			t.Fatal(err)
		}
		if got, err := hostName(dir, "lab", ""); err != nil || got != name {
			t.Errorf("the host is called %q, %v; want %s", got, err, name)
		}
		if name == "node1" {
			if err := os.Link(path, before); err != nil {
				t.Fatal(err)
			}
		}
	}
	if text, err := os.ReadFile(before); err != nil || string(text) != "node1" {
		t.Errorf("the file before holds %q, %v", text, err)
	}
}

// A host whose name in the pool cannot be read gets no other one: its jobs would be those of a host
// that is away, and what runs of them be killed.
func TestNameThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, hostFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if name, err := hostName(dir, "lab", ""); err == nil {
		t.Errorf("the host is called %s", name)
	}
}

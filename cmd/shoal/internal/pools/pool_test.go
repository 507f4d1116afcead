package pools

import (
	"strings"
	"testing"
)

// TestErrorFromLog: that a keeper has ended is said also where its log does not say why, or people
// have read that before.
func TestErrorFromLog(t *testing.T) {
	for _, c := range []struct {
		log  string
		told int
		want string
	}{
		{"shoal: no room\n", 0, "no room"},
		{"shoal: a note\nshoal: no room\n", 14, "no room"},
		{"shoal: no room\n", 15, "the keeper of the pool has ended; why stands above"},
		{"", 0, "the keeper of the pool has ended, and its log is empty, as on a disk without " +
			"room: without --background it says why"},
	} {
		if got := errorFromLog([]byte(c.log), c.told); got != c.want {
			t.Errorf("%q after %d bytes: %q, want %q", c.log, c.told, got, c.want)
		}
	}
}

// A folder, and a variable, that the record of a pool would have otherwise is refused by its name.
func TestTextThatAPoolCannotKeep(t *testing.T) {
	good := []string{"A=ü", "=C:=x", "B="}
	if err := checkText("/home/ä", good); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		`the folder "/home/\xe4"`: checkText("/home/\xe4", good),
		`the variable "B"`:        checkText("/", append(good, "B=\xff")),
		`the variable "B\xff"`:    checkText("/", append(good, "B\xff=x")),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

package nodelist_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/nodelist"
)

// Lists of every form are read, and what Slurm does not write is refused in words.
func TestExpand(t *testing.T) {
	for list, want := range map[string]string{
		"n1":                    "n1",
		"n1,n2":                 "n1 n2",
		"n[1-3,07]":             "n1 n2 n3 n07",
		"n[08-11]":              "n08 n09 n10 n11",
		"n[9-11]":               "n9 n10 n11",
		"login,rack[0-1]n[1-2]": "login rack0n1 rack0n2 rack1n1 rack1n2",
		"a[1,3]-ib.x,b_2":       "a1-ib.x a3-ib.x b_2",
		"[1-2]":                 "1 2",
		"n[0-0]":                "n0",
		"N-A[000]":              "N-A000",
	} {
		got, err := nodelist.Expand(list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, %v; want %s", list, got, err, want)
		}
	}
	for list, want := range map[string]string{
		"":                              "without a node",
		"n[1-3":                         "[ without ]",
		"n]1":                           "which no name of a node has",
		"n[1-]":                         `"" is no number`,
		"n[]":                           `"" is no number`,
		"n[3-1]":                        "goes down",
		"n[10-9]":                       "goes down",
		"n[1-010]":                      "as many zeros",
		"n[1-a]":                        `"a" is no number`,
		"a,,b":                          "a name is empty",
		"a b":                           "no name of a node has",
		"n[0-99999999]":                 "more than 65536",
		"a[0-999]b[0-999]":              "more than 65536",
		"n[[1]]":                        "is no number",
		"(null)":                        "no name of a node has",
		"n[1234567890]":                 "up to 9 digits",
		"a[0-65535],b":                  "more than 65536",
		"a[0-60000],b[0-9999],c[1-999]": "more than 65536",
	} {
		if got, err := nodelist.Expand(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v; want an error with %q", list, got, err, want)
		}
	}
}

// Whatever the text, the answer is an error, or names of which each is a list of itself.
func FuzzExpand(f *testing.F) {
	for _, list := range []string{"n[1-3,07]", "a,b[2-4]c[01-02]", "[", "n[9-11]-x", "n[1-3", "]"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		nodes, err := nodelist.Expand(list)
		if err != nil {
			return
		}
		if len(nodes) == 0 || len(nodes) > nodelist.Most {
			t.Fatalf("%q: %d nodes", list, len(nodes))
		}
		for _, n := range nodes {
			if again, err := nodelist.Expand(n); err != nil || !slices.Equal(again, []string{n}) {
				t.Fatalf("%q: the node %q is %v, %v", list, n, again, err)
			}
		}
	})
}

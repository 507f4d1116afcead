package numa

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeSystem writes a folder such as System, files by their paths in it, and returns it. It is
// removed with the test; a failure ends the test.
func writeSystem(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// writeStatus writes a file such as Self, and returns its path. cpus and mems are lists as
// parseList takes them. It is removed with the test; a failure ends the test.
func writeStatus(t *testing.T, cpus, mems string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "status")
	text := fmt.Sprintf(
		"Name:\tshoal\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nMems_allowed_list:\t%s\n", cpus,
		mems)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRead checks which nodes a process can use, and when there is nothing to choose.
func TestRead(t *testing.T) {
	two := map[string]string{"online": "0-1", "has_memory": "0-1", "node0/cpulist": "0-3,8-11",
		"node1/cpulist": "4-7,12-15"}
	// with returns the files of two with changes: pairs of a path and a text.
	with := func(changes ...string) map[string]string {
		files := map[string]string{}
		for path, text := range two {
			files[path] = text
		}
		for i := 0; i < len(changes); i += 2 {
			files[changes[i]] = changes[i+1]
		}
		return files
	}
	for what, c := range map[string]struct {
		files      map[string]string
		cpus, mems string
		want       []Node
	}{
		"one node": {
			map[string]string{"online": "0", "has_memory": "0", "node0/cpulist": "0-1"}, "0-1", "0",
			nil},
		"two nodes": {two, "0-127", "0-1",
			[]Node{{0, []int{0, 1, 2, 3, 8, 9, 10, 11}}, {1, []int{4, 5, 6, 7, 12, 13, 14, 15}}}},
		"numbers with a gap": {
			with("online", "0,2", "has_memory", "0,2", "node2/cpulist", "4-5"), "0-15", "0-2",
			[]Node{{0, []int{0, 1, 2, 3, 8, 9, 10, 11}}, {2, []int{4, 5}}}},
		"memory on one": {with("has_memory", "0"), "0-15", "0-1", nil},
		"memory alone": {
			with("online", "0-2", "has_memory", "0-2", "node2/cpulist", ""), "0-15", "0-2",
			[]Node{{0, []int{0, 1, 2, 3, 8, 9, 10, 11}}, {1, []int{4, 5, 6, 7, 12, 13, 14, 15}}}},
		"processors offline": {with("node1/cpulist", ""), "0-15", "0-1", nil},
		"some of a node's offline": {with("node1/cpulist", "5"), "0-15", "0-1",
			[]Node{{0, []int{0, 1, 2, 3, 8, 9, 10, 11}}, {1, []int{5}}}},
		"kept on one node": {two, "0-3", "0-1", nil},
		"kept on parts of both": {two, "2-5", "0-1",
			[]Node{{0, []int{2, 3}}, {1, []int{4, 5}}}},
		"memory of one is allowed":  {two, "0-15", "0", nil},
		"memory of none is allowed": {two, "0-15", "", nil},
		"a list that is none":       {with("node1/cpulist", "4-"), "0-15", "0-1", nil},
		"a system that is silent":   {nil, "0-15", "0-1", nil},
	} {
		if d := cmp.Diff(c.want,
			Read(writeSystem(t, c.files), writeStatus(t, c.cpus, c.mems))); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	if got := Read(writeSystem(t, two), filepath.Join(t.TempDir(), "none")); got != nil {
		t.Errorf("of a process that says nothing: %v", got)
	}
}

// TestHome checks on which node a process is kept.
func TestHome(t *testing.T) {
	nodes := []Node{{0, []int{0, 1}}, {2, []int{4, 5}}}
	for cpus, want := range map[string]struct {
		id   int
		kept bool
	}{"0": {0, true}, "0-1": {0, true}, "5": {2, true}, "2,4-5,9": {2, true}, "1,4": {2, false},
		"0-127": {2, false}, "2-3": {0, false}, "": {0, false}, "x": {0, false}} {
		if id, kept := Home(nodes, writeStatus(t, cpus, "0-2")); kept != want.kept ||
			kept && id != want.id {
			t.Errorf("on %q: %d, %v", cpus, id, kept)
		}
	}
	if _, kept := Home(nodes, "/proc/0/status"); kept {
		t.Error("a process that is not there is kept on a node")
	}
}

// TestNext checks on which nodes workers come, one after the other.
func TestNext(t *testing.T) {
	// cpus returns n processors, whose numbers do not count.
	cpus := func(n int) []int { return make([]int, n) }
	for what, c := range map[string]struct {
		nodes []Node
		want  []int
	}{
		"alike":         {[]Node{{0, cpus(8)}, {1, cpus(8)}}, []int{0, 1, 0, 1, 0}},
		"three to one":  {[]Node{{0, cpus(4)}, {1, cpus(12)}}, []int{1, 1, 0, 1}},
		"one that lags": {[]Node{{3, cpus(60)}, {5, cpus(2)}}, []int{3, 3, 3}},
	} {
		taken := map[int]int{}
		var got []int
		for range c.want {
			id := Next(c.nodes, taken).ID
			got = append(got, id)
			taken[id]++
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// FuzzParseList checks that what is read is ascending, and reads the same when it is written again.
func FuzzParseList(f *testing.F) {
	for _, seed := range []string{"", "\n", "0", "0-1", "0-3,8-11\n", "0-65535", "3-1", "1,1", "-1",
		"1-", "0,,1", "0-99999999999", "0-31:2/4", " 0", "+1", "0x1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseList(text)
		if err != nil {
			if list != nil {
				t.Errorf("%q: %v beside %v", text, list, err)
			}
			return
		}
		var words []string
		for i, n := range list {
			if n < 0 || i > 0 && n <= list[i-1] {
				t.Fatalf("%q: %v does not ascend", text, list)
			}
			words = append(words, fmt.Sprint(n))
		}
		if again, err := parseList(strings.Join(words, ",")); err != nil ||
			!slices.Equal(again, list) {
			t.Errorf("%q: %v became %v, %v", text, list, again, err)
		}
	})
}

package kernel_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// loop is what the main loop of a kernel takes for 64 bytes of accumulator, in instructions: a turn
// of it, without the loops inside. A kernel that adds up all sources at once has two of these: what
// a source beyond the first and a destination take is counted for each of them.
type loop struct{ turn, source, destination float64 }

// loops has what every kernel takes with vectors of 32 and of 64 bytes.
var loops = map[string][2]loop{
	"SumF64":           {{turn: 9.25}, {turn: 5.25}},
	"MinF64":           {{turn: 13.25}, {turn: 7.25}},
	"MaxF64":           {{turn: 19.25}, {turn: 10.25}},
	"SumF32":           {{turn: 9.25}, {turn: 5.25}},
	"MinF32":           {{turn: 13.25}, {turn: 7.25}},
	"MaxF32":           {{turn: 19.25}, {turn: 10.25}},
	"SumF16":           {{turn: 9.25}, {turn: 5.25}},
	"SumBF16":          {{turn: 13.25}, {turn: 7.25}},
	"SumI64":           {{turn: 9.25}, {turn: 5.25}},
	"SumI32":           {{turn: 9.25}, {turn: 5.25}},
	"FoldF16":          {{turn: 9}, {turn: 5}},
	"LoadF16":          {{turn: 5}, {turn: 3}},
	"StoreF16":         {{turn: 7}, {turn: 4}},
	"StreamF16":        {{turn: 7}, {turn: 4}},
	"FoldBF16":         {{turn: 11}, {turn: 6}},
	"LoadBF16":         {{turn: 7}, {turn: 4}},
	"StoreBF16":        {{turn: 25}, {turn: 12}},
	"StreamBF16":       {{turn: 25}, {turn: 12}},
	"SumAllF64":        {{6, 3.25, 3}, {4, 2.25, 2}},
	"SumAllF32":        {{6, 3.25, 3}, {4, 2.25, 2}},
	"SumAllF16":        {{8, 5.25, 3}, {5, 3.25, 2}},
	"SumAllBF16":       {{28, 7.25, 3}, {14, 4.25, 2}},
	"SumAllI64":        {{4, 3.25, 3}, {3, 2.25, 2}},
	"SumAllI32":        {{4, 3.25, 3}, {3, 2.25, 2}},
	"StreamSumAllF64":  {{6, 3.25, 3}, {4, 2.25, 2}},
	"StreamSumAllF32":  {{6, 3.25, 3}, {4, 2.25, 2}},
	"StreamSumAllF16":  {{8, 5.25, 3}, {5, 3.25, 2}},
	"StreamSumAllBF16": {{28, 7.25, 3}, {14, 4.25, 2}},
	"StreamSumAllI64":  {{4, 3.25, 3}, {3, 2.25, 2}},
	"StreamSumAllI32":  {{4, 3.25, 3}, {3, 2.25, 2}},
	"StreamCopy":       {{turn: 5}, {turn: 3}},
	"LoadScaledF64":    {{turn: 7}, {turn: 4}},
	"FoldScaledF64":    {{turn: 9}, {turn: 5}},
	"LoadScaledF32":    {{turn: 7}, {turn: 4}},
	"FoldScaledF32":    {{turn: 9}, {turn: 5}},
	"LoadScaledF16":    {{turn: 7}, {turn: 4}},
	"FoldScaledF16":    {{turn: 9}, {turn: 5}},
	"LoadScaledBF16":   {{turn: 9}, {turn: 5}},
	"FoldScaledBF16":   {{turn: 11}, {turn: 6}},
}

// Speed is no test's business, instructions are: no kernel takes another number of them than is
// written here. After a change that is wanted the table says what it brought.
func TestInstructions(t *testing.T) {
	avx2, avx512 := mainLoops(t, "avx2"), mainLoops(t, "avx512")
	for name, want := range loops {
		if got := avx2[name]; got != want[0] {
			t.Errorf("avx2%s takes %v instructions for 64 bytes, the table says %v", name, got,
				want[0])
		}
		if got := avx512[name]; got != want[1] {
			t.Errorf("avx512%s takes %v instructions for 64 bytes, the table says %v", name, got,
				want[1])
		}
	}
	for _, have := range []map[string]loop{avx2, avx512} {
		for name, got := range have {
			if _, ok := loops[name]; !ok {
				t.Errorf("%s is not in the table: it takes %v instructions for 64 bytes", name, got)
			}
		}
	}
}

// jump matches a jump, or the subtraction from the blocks that are left, and takes out where to or
// how many.
var (
	jump = regexp.MustCompile(`^J\w+ +(\w+)$`)
	less = regexp.MustCompile(`^SUBQ +\$0x(\w+), \w+$`)
)

// mainLoops counts the instructions of the main loops in the committed code for an instruction set,
// by the names of the functions without it. A main loop is between the label "several" and the jump
// back to it. A file that cannot be read fails the test.
func mainLoops(t *testing.T, isa string) map[string]loop {
	t.Helper()
	text, err := os.ReadFile("z" + isa + "_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]loop{}
	for _, function := range strings.Split(string(text), "\nTEXT ·"+isa)[1:] {
		name, body, _ := strings.Cut(function, "(SB)")
		if _, body, ok := strings.Cut(body, "\nseveral:\n"); ok {
			found[name] = countInstructions(t, isa+name, body)
		}
	}
	return found
}

// countInstructions counts the instructions of a main loop, from the first line of code on, for
// each block that a turn of it does. It fails the test where the loop, of the kernel of this name,
// does not end.
func countInstructions(t *testing.T, name, code string) (n loop) {
	t.Helper()
	label, blocks := "several", 0.0
	for line := range strings.Lines(code) {
		line = strings.TrimSpace(line)
		if next, ok := strings.CutSuffix(line, ":"); ok {
			label = next
			continue
		}
		switch {
		case line == "":
			continue
		case label == "severalSources":
			n.source++
		case label == "severalDestinations":
			n.destination++
		default:
			n.turn++
		}
		if m := less.FindStringSubmatch(line); m != nil {
			left, err := strconv.ParseUint(m[1], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			blocks = float64(left)
		}
		if m := jump.FindStringSubmatch(line); m != nil && m[1] == "several" {
			return loop{n.turn / blocks, n.source / blocks, n.destination / blocks}
		} else if m != nil && m[1] == label {
			label = "several"
		}
	}
	t.Fatalf("%s does not jump back to several", name)
	return n
}

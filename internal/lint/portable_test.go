package lint

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// portableRooms are the rooms whose results must be the same bytes on every processor.
var portableRooms = []string{"./act", "./collective", "./cost", "./data/cursor", "./decide/...",
	"./internal/portable", "./sense/...", "./setting", "./sim/...", "./twin", "./world/..."}

var (
	// fused is an instruction that multiplies and adds with one rounding, and mathCall a call of a
	// function of package math.
	fused    = regexp.MustCompile(`\(([^()\s]+\.go:\d+)\)\s+FN?M(?:ADD|SUB)[DS]\s`)
	mathCall = regexp.MustCompile(`\(([^()\s]+\.go:\d+)\)\s+CALL\s+math\.(\w+)\(SB\)`)
	// exactCalls are those that are exact on every processor.
	exactCalls = []string{"Frexp", "Ldexp", "Max", "Min", "Mod", "Modf", "Sqrt", "archMax",
		"archMin", "frexp", "ldexp", "mod", "modf"}
)

// TestSameOnEveryProcessor compiles pure rooms for arm64, where the compiler fuses a product with
// the sum that it goes into, as it may by the language, unless the product is converted. Functions
// of package math have it inside, or are assembly on one processor and not on another. It compiles
// only what has changed, since Go keeps also what the compiler prints.
func TestSameOnEveryProcessor(t *testing.T) {
	const module = "github.com/shoal-ml/shoal/"
	args := append([]string{"build", "-gcflags=" + module + "...=-S"}, portableRooms...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build for arm64: %v\n%.2000s", err, out)
	}
	text, found := string(out), map[string]string{}
	if !strings.Contains(text, module+"internal/portable.Log STEXT") {
		t.Fatal("the compiler has not printed what it made of internal/portable")
	}
	for _, m := range fused.FindAllStringSubmatch(text, -1) {
		found[m[1]] = "a product is added without rounding on some processors: write " +
			"float64(x*y) + z, also where the product has got a name before"
	}
	for _, m := range mathCall.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(exactCalls, m[2]) {
			found[m[1]] = "math." + m[2] + " gives other digits on other processors: " +
				"internal/portable has such functions"
		}
	}
	for where, what := range found {
		t.Errorf("%s: %s", strings.TrimPrefix(where, module), what)
	}
}

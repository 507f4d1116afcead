package layout_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// TestMeshTexts reads the texts of testdata/meshes.txt, which Python's tests read too.
func TestMeshTexts(t *testing.T) {
	for _, line := range readTexts(t, "testdata/meshes.txt") {
		text, want, good := strings.Cut(line, " => ")
		if !good {
			text, want, _ = strings.Cut(line, " ! ")
		}
		m, err := layout.ParseMesh(text)
		switch {
		case good && err != nil:
			t.Errorf("%s: %v", text, err)
		case good && m.String() != want:
			t.Errorf("%s: %s, want %s", text, m, want)
		case !good && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: error %v, want one with %s", text, err, want)
		}
	}
}

// readTexts lists the lines of a file that are not empty and no comments.
func readTexts(t testing.TB, path string) (lines []string) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

var update = flag.Bool("update", false, "write "+randomTexts+" anew")

// randomTexts has what Go makes of random texts of meshes. Python's tests compare with it.
const randomTexts = "testdata/meshes_random.txt"

// TestRandomMeshTexts has random texts of meshes, right and wrong ones, and what is made of them.
// They are in a file, whole, for Python to make the same of them.
func TestRandomMeshTexts(t *testing.T) {
	var out strings.Builder
	out.WriteString("# Written by go test ./state/layout -run TestRandomMeshTexts -update.\n")
	random, good := rand.New(rand.NewPCG(25, 1)), 0
	for range 400 {
		text := randomMeshText(random)
		m, err := layout.ParseMesh(text)
		if err == nil {
			good++
			fmt.Fprintf(&out, "%s => %s\n", text, m)
			continue
		}
		said, is := strings.CutPrefix(err.Error(), fmt.Sprintf("layout: mesh %q: ", text))
		if !is {
			t.Errorf("%s: the error %v does not begin with the text", text, err)
		}
		fmt.Fprintf(&out, "%s ! %s\n", text, said)
	}
	if good < 100 || good > 300 {
		t.Errorf("%d of 400 texts are meshes", good)
	}
	if *update {
		if err := os.WriteFile(randomTexts, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(randomTexts)
	if diff := cmp.Diff(out.String(), string(have)); diff != "" || err != nil {
		t.Errorf("%s (%v) is not what Go makes of these texts; -update writes it, and Python has "+
			"to follow: %s", randomTexts, err, diff)
	}
}

// randomMeshText makes a text of a mesh, of which some part may be wrong.
func randomMeshText(random *rand.Rand) string {
	pick := func(words ...string) string { return words[random.IntN(len(words))] }
	wrong := func() bool { return random.IntN(24) == 0 }
	var axes []string
	for i, name := range []string{"dp", "tp", "pp"}[random.IntN(2):] {
		size := 1 + random.IntN(4)
		list := func(word func() string) string {
			var words []string
			for range size + random.IntN(24)/23 {
				words = append(words, pick("", "", "", " ")+word())
			}
			return strings.Join(words, "/")
		}
		var inside []string
		for _, key := range []string{"", "micro", "ahead", "chunks", "on"} {
			value := pick("1", "4", "16")
			switch {
			case random.IntN(3) > 0 || key == "chunks" && random.IntN(3) > 0:
				continue
			case key == "":
				value = list(func() string { return pick("0", "1", "6", "12") })
			case key == "ahead":
				held := 9
				value = list(func() string {
					held = max(1, held-random.IntN(4)+random.IntN(24)/23)
					return strconv.Itoa(held)
				})
			case key == "on":
				value = list(func() string { return pick("a100", "v100", "cpu", "T4-16.x_y") })
			}
			if wrong() {
				value = pick("", "x/y", "-1", "+1", "0", "1.5", "9999999999", "a b", "1/2/3/4/5",
					"999999999999999999999", "*", "1=1")
			}
			if wrong() {
				key = pick("spin", "on", "micro", "ahead", " micro ")
			}
			if key != "" {
				key += pick("=", "=", " = ")
			}
			inside = append(inside, key+value)
		}
		random.Shuffle(len(inside), func(i, j int) {
			inside[i], inside[j] = inside[j], inside[i]
		})
		if wrong() {
			name = pick("dp", "Dp", "", "2x", "d-p", "d_2")
		}
		text := name + pick("=", "=", " = ") + strconv.Itoa(size)
		if wrong() {
			text = pick(name, name+"=", name+"=0", name+"=-2", name+"=+2", name+"=300000",
				name+"=x", name+"==2")
		}
		if inside != nil {
			text += pick("(", " ( ") + strings.Join(inside, pick(";", "; ")) + pick(")", " )")
		}
		if wrong() {
			text += pick("(", ")", "()", "x", "=", " ")
		}
		if axes = append(axes, text); i == 2 && wrong() {
			axes = append(axes, pick("", "dp=2", "ep=200000", "ep=2"))
		}
	}
	return strings.Join(axes, pick(",", ", "))
}

// FuzzParseMesh: what can be read is written in one form, which is read as the same, and each rank
// is to be on the kind of host that the positions on its axes say.
func FuzzParseMesh(f *testing.F) {
	for _, path := range []string{"testdata/meshes.txt", randomTexts} {
		for _, line := range readTexts(f, path) {
			text, _, _ := strings.Cut(line, " => ")
			text, _, _ = strings.Cut(text, " ! ")
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := layout.ParseMesh(text)
		if err != nil {
			return
		}
		again, err := layout.ParseMesh(m.String())
		if diff := cmp.Diff(m, again); diff != "" || err != nil {
			t.Fatalf("%q is read as %s, and that as another mesh (%v): %s", text, m, err, diff)
		}
		rank := 0
		var walk func(m layout.Mesh, kind string)
		walk = func(m layout.Mesh, kind string) {
			if len(m) == 0 {
				if got := again.KindOf(rank); got != kind {
					t.Fatalf("rank %d of %s is to be on %q, want %q", rank, again, got, kind)
				}
				rank++
				return
			}
			for i := range m[0].Size {
				on := kind
				if m[0].On != nil {
					on = m[0].On[i]
				}
				walk(m[1:], on)
			}
		}
		if m.Ranks() < 1000 {
			walk(m, "")
		}
	})
}

// TestSharesOfAnAxis puts five numbered tensors where the mesh says, and where it contradicts the
// layout refuses.
func TestSharesOfAnAxis(t *testing.T) {
	for _, x := range []struct{ mesh, place, want string }{
		{"pp=2(4/1)", "pp=spread(1,5)", "0 0 0 0 1"},
		{"pp=2(1/4)", "pp=spread(1,5,balanced)", "0 1 1 1 1"},
		{"pp=3(0/2/3)", "pp=spread(1,5,balanced)", "1 1 2 2 2"},
		{"pp=4(2/0/3/0)", "pp=spread(1,5)", "0 0 2 2 2"},
		{"pp=2(3/1)", "pp=spread(1,5)", "its shares are 4 in all, and there are 5 to spread"},
		{"pp=2(4/1)", "pp=spread(1,5,cuts=2)", "one of the two may"},
		{"pp=1(chunks=5)", "pp=spread(1,5)", "0 0 0 0 0"},
		{"pp=5(chunks=1)", "pp=spread(1,5,balanced)", "0 1 2 3 4"},
		{"pp=2(chunks=1)", "pp=spread(1,5,balanced)", "0 0 0 1 1"},
		{"pp=3(0/2/3)", "pp=spread(1,5,contiguous)", "1 1 2 2 2"},
		{"pp=2(chunks=1)", "pp=spread(1,5,contiguous)", "0 0 0 1 1"},
		{"pp=1(chunks=5)", "pp=spread(1,5,contiguous)",
			"the mesh has pp=1(chunks=5), and the program has the numbers of a position on pp in " +
				"a row, spread(1,5,contiguous): leave chunks out"},
		{"pp=2(chunks=2)", "pp=spread(1,5)", "5 numbers in 4 chunks do not come out even"},
		{"pp=2(chunks=2)", "pp=spread(1,5,balanced)", "5 numbers in 4 chunks do not come out even"},
		{"pp=3(chunks=2)", "pp=spread(1,6)", "0 1 2 0 1"},
		{"pp=3(chunks=2)", "pp=spread(1,6,balanced)", "0 1 2 0 1"},
		{"pp=2(micro=3;ahead=2/1)", "pp=spread(1,5,balanced)", "0 0 0 1 1"},
	} {
		spec := layout.Spec{Shoal: layout.Version, Mesh: x.mesh,
			Rules: []layout.Rule{{Match: "layers.#", Place: x.place}}}
		var tensors []layout.Tensor
		for _, n := range "01234" {
			tensors = append(tensors, layout.Tensor{Name: "layers." + string(n),
				DType: tensor.F32, Shape: tensor.Shape{1}})
		}
		l, err := spec.Resolve(tensors)
		if err != nil {
			if !strings.Contains(err.Error(), x.want) {
				t.Errorf("%s, %s: error %v, want %s", x.mesh, x.place, err, x.want)
			}
			continue
		}
		at := map[string]int{}
		for rank := range l.Ranks {
			for _, local := range l.RankLocals(rank) {
				at[local.Name] = rank
			}
		}
		var got []string
		for _, tensor := range tensors {
			got = append(got, string(rune('0'+at[tensor.Name])))
		}
		if strings.Join(got, " ") != x.want {
			t.Errorf("%s, %s: at %v, want %s", x.mesh, x.place, got, x.want)
		}
	}
}

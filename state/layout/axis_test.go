package layout_test

import (
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// TestMeshTexts reads the texts of testdata/meshes.txt, which Python's tests read too.
func TestMeshTexts(t *testing.T) {
	b, err := os.ReadFile("testdata/meshes.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
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
		{"pp=2(chunks=2)", "pp=spread(1,5)", "5 numbers in 4 chunks do not come out even"},
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

package manifest_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// sample is a manifest with all that one can have. Tests do not change it.
var sample = &manifest.Manifest{
	Seed: 42,
	Tensors: []manifest.Tensor{
		{Name: "a<b>", DType: tensor.F32, Shape: tensor.Shape{2, 3},
			Sum: digest.Sum{Value: 1 << 60, Bytes: 24}},
		{Name: "w", Place: "tp=0/2", DType: tensor.BF16, Sum: digest.Sum{Value: 7, Bytes: 2}},
		{Name: "w", Place: "tp=1/2", DType: tensor.BF16, Sum: digest.Sum{Value: 8, Bytes: 2}},
	},
	Files: []manifest.File{{Name: "empty"},
		{Name: "x/y", Size: manifest.BlockBytes + 1, Blocks: []manifest.Hash{{1}, {2}}}},
}

// sampleText returns the sample as it is written. If it cannot be the test fails.
func sampleText(t testing.TB) string {
	b, err := sample.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestParse reads the sample, and writes it with the same bytes.
func TestParse(t *testing.T) {
	got, err := manifest.Parse([]byte(sampleText(t)))
	if err != nil {
		t.Fatal(err)
	}
	again, err := got.Append(nil)
	if err != nil || string(again) != sampleText(t) {
		t.Errorf("%v: read and written: %s", err, cmp.Diff(sampleText(t), string(again)))
	}
}

// TestRefused says of changed manifests what is wrong.
func TestRefused(t *testing.T) {
	for _, c := range [][3]string{ // what is replaced, by what, and what the error says
		{"manifest/1", "manifest/2", "another version"},
		{`"shoal": "manifest/1"`, `"by": "me", "shoal": "manifest/2"`, "another version"},
		{`"shoal": "manifest/1",`, "", "shoal is missing"},
		{`"seed": "`, `"seed": "x`, "seed"},
		{`"seed": "000000000000002a`, `"seed": "000000000000002b`, "changed by hand or damaged"},
		{`"dtype": "f32"`, `"dtype": "f33"`, "no element type"},
		{`"sum": "1`, `"sum": "2`, "is no fingerprint"},
		{`"name": "a<b>"`, `"name": "a"`, "changed by hand or damaged"},
		{"tp=1/2", "tp=0/2", "stands twice"},
		{"x/y", "../y", "leads out of the folder"},
		{"x/y", "/y", "leads out of the folder"},
		{"x/y", `x\\y`, "leads out of the folder"},
		{"x/y", "c:y", "leads out of the folder"},
		{"x/y", "empty", "stands twice"},
		{`"size": 4194305`, `"size": 4194304`, "2 hashes for 4194304 bytes"},
		{`"size": 0`, `"size": -1`, "hashes for -1 bytes"},
		{`"0100`, `"zz00`, "is no SHA-256"},
		{`"0100`, `"00`, "is no SHA-256"},
		{`"01` + strings.Repeat("00", 31) + `"`, `null`, "is no SHA-256"},
		{`"files": [`, `"more": 1, "files": [`, "unknown field"},
		{"\n}\n", "\n}{", "stands after it"},
	} {
		bad := strings.Replace(sampleText(t), c[0], c[1], 1)
		if bad == sampleText(t) {
			t.Fatalf("%q is not in it", c[0])
		}
		if _, err := manifest.Parse([]byte(bad)); err == nil ||
			!strings.Contains(err.Error(), c[2]) || !strings.HasPrefix(err.Error(), "manifest: ") {
			t.Errorf("%q for %q: %v, want %q", c[1], c[0], err, c[2])
		}
	}
}

// TestVersion has manifests of another version, which may have fields of its own, before and after
// the one that says so: nobody takes them for damaged.
func TestVersion(t *testing.T) {
	for _, text := range []string{`{"shoal": "manifest/2", "more": 1}`,
		`{"more": 1, "shoal": "manifest/2"}`, `{"shoal": "manifest/2"}`} {
		if _, err := manifest.Parse([]byte(text)); !errors.Is(err, manifest.ErrVersion) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestOrder reads the sample with its tensors and files in another order: they are in that of their
// names again, and one that stands twice is found though others are between.
func TestOrder(t *testing.T) {
	turned := *sample
	turned.Tensors, turned.Files = slices.Clone(sample.Tensors), slices.Clone(sample.Files)
	slices.Reverse(turned.Tensors)
	slices.Reverse(turned.Files)
	b, err := turned.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifest.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := got.Append(nil); err != nil || string(again) != sampleText(t) {
		t.Errorf("%v: in another order: %s", err, cmp.Diff(sampleText(t), string(again)))
	}
	turned.Files = append(turned.Files, turned.Files[0])
	if b, err = turned.Append(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := manifest.Parse(b); err == nil || !strings.Contains(err.Error(), "stands twice") {
		t.Errorf("a file twice: %v", err)
	}
}

// FuzzParse has any text as a manifest: it is refused, or written and read again the same.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sampleText(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := manifest.Parse(b)
		if err != nil {
			return
		}
		once, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := manifest.Parse(once)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := back.Append(nil)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
	})
}

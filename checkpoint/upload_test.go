package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/s3/s3test"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// writeOdd writes a checkpoint of 50 MB, a file in a folder of the test, with tensors that are
// smaller and larger than a part, and end anywhere in one. It returns its path.
func writeOdd(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "odd.safetensors")
	entry := func(name string, d tensor.DType, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: d, Shape: shape}
	}
	writeRandom(t, path, 7, []safetensors.Tensor{
		entry("a", tensor.BF16, 3, 7), entry("b", tensor.U8, 3_000_001),
		entry("c", tensor.F32, 3000, 1001), entry("d", tensor.BF16, 4000, 1500),
		entry("e", tensor.F32, 3, 0), entry("f", tensor.F16, 1_000_003),
		entry("g", tensor.BF16, 10000, 1001),
	})
	return path
}

// columns cuts the tensors of writeOdd that are matrices, so that what lies in a row comes from
// many places.
var columns = &layout.Spec{Shoal: layout.Version, Mesh: "tp=2",
	Rules: []layout.Rule{{Match: "c", Place: "tp=shard(1,balanced)"},
		{Match: "g", Place: "tp=shard(1,balanced)"}, {Match: "**"}}}

// sealedMove moves a checkpoint with a manifest, and returns what Move does. What goes wrong
// before fails the test.
func sealedMove(t *testing.T, from, to string, f TargetFormat) (*Report, error) {
	t.Helper()
	c := openCheckpoint(t, from)
	f.File = filepath.Base(to)
	out, _, err := c.Output(f)
	if err != nil {
		t.Fatal(err)
	}
	return Move(t.Context(), c, out, to, Options{Workers: 2, Seal: true})
}

// checkAlike fails the test unless the objects below a prefix are the files of a folder, or a file
// and its manifest, bit by bit, and nothing else is there.
func checkAlike(t *testing.T, store *s3test.Server, prefix, path string) {
	t.Helper()
	want := map[string][]byte{}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, root := range files {
		if err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				want[prefix+strings.TrimPrefix(file, path)], err = os.ReadFile(file)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range store.Keys() {
		if b, ok := want[key]; !strings.HasPrefix(key, prefix) || !ok ||
			!bytes.Equal(b, store.Get(key)) {
			t.Errorf("%s: is due: %v, and has %d bytes, as is due: %v", key, ok,
				len(store.Get(key)), bytes.Equal(b, store.Get(key)))
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is not there", key)
	}
	if left := store.Uploads(); len(left) > 0 {
		t.Errorf("uploads are left: %q", left)
	}
}

// TestMoveToBucket writes every format to a bucket and to a disk: the same files come to be, and
// can be verified where they are.
func TestMoveToBucket(t *testing.T) {
	stages, err := layout.Parse([]byte(megatronLayout))
	if err != nil {
		t.Fatal(err)
	}
	odd := writeOdd(t)
	megatron, _ := megatronSample(t, "distributed")
	for _, c := range []struct {
		name, from, to string
		form           TargetFormat
	}{
		{"hf", odd, "hf", TargetFormat{Format: "hf", MaxFileBytes: 20e6}},
		{"file", odd, "model.safetensors", TargetFormat{Format: "hf"}},
		{"pt", odd, "model.pt", TargetFormat{Format: "pt"}},
		{"dcp", odd, "dcp", TargetFormat{Format: "dcp", Spec: columns}},
		{"shards", odd, "shards", TargetFormat{Format: "shards", Spec: columns}},
		{"ranks", odd, "ranks", TargetFormat{Format: "ranks", Spec: columns}},
		{"one", odd, "one", TargetFormat{Format: "ranks"}},
		{"megatron", megatron, "megatron", TargetFormat{Format: "megatron", Spec: stages}},
		{"torch_dist", megatron, "dist", TargetFormat{Format: "torch_dist"}},
		{"replicas", megatron, "replicas", TargetFormat{Format: "ranks", Spec: stages}},
		{"dist to pt", megatron, "dist.pt", TargetFormat{Format: "pt"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, here, there := s3test.Start(t, nil), filepath.Join(t.TempDir(), c.to),
				"s3://models/runs/"+c.to
			want, err := sealedMove(t, c.from, here, c.form)
			if err != nil {
				t.Fatal(err)
			}
			got, err := sealedMove(t, c.from, there, c.form)
			if err != nil {
				t.Fatal(err)
			}
			if got.State != want.State || got.Moved != want.Moved {
				t.Errorf("%+v, and to a folder %+v", got, want)
			}
			checkAlike(t, store, "runs/"+c.to, here)
			if damage, _, err := Verify(t.Context(), there, 2); err != nil || len(damage) > 0 {
				t.Errorf("verified: %v, %v", damage, err)
			}
			if found, _, err := Compare(t.Context(), openCheckpoint(t, here),
				openCheckpoint(t, there), 2); err != nil ||
				len(found) > 0 {
				t.Errorf("they differ: %v, %v", found, err)
			}
			before := store.Keys()
			if _, err := sealedMove(t, c.from, there, c.form); err == nil ||
				!strings.Contains(err.Error(), there+
					" is there already; shoal overwrites nothing") {
				t.Errorf("moved again: %v", err)
			}
			if !slices.Equal(before, store.Keys()) {
				t.Errorf("there are %q, and were %q", store.Keys(), before)
			}
		})
	}
}

// TestParts has parts that wait for checksums, and bounds what of them is in memory.
func TestParts(t *testing.T) {
	store := s3test.Start(t, nil)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	bytes := writeRandom(t, path, 1,
		[]safetensors.Tensor{{Name: "a", DType: tensor.F32, Shape: tensor.Shape{25, 1 << 20}},
			{Name: "b", DType: tensor.F32, Shape: tensor.Shape{25, 1 << 20}}})
	c := openCheckpoint(t, path)
	out, _, err := c.Output(TargetFormat{Format: "pt", File: "model.pt"})
	if err != nil {
		t.Fatal(err)
	}
	from, err := newSourceEndpoint(c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := newUpload(t.Context(), "s3://models/model.pt", out, moveIdentity(c, out))
	if err != nil {
		t.Fatal(err)
	}
	x := transfer{src: c, from: from, to: u, key: c.digestKey(u.id, true)}
	if _, err := x.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := 25 * 16 << 20; u.parts.peak > most || u.parts.peak >= int(bytes) ||
		u.parts.bytes != 0 {
		t.Errorf("%d bytes of parts were in memory, and %d are at the end", u.parts.peak,
			u.parts.bytes)
	}
	t.Logf("%d MiB of parts in memory of %d", u.parts.peak>>20, bytes>>20)
	if n := len(store.Get("model.pt")); int64(n) != out.Files[0].Size {
		t.Errorf("%d bytes", n)
	}
}

// TestRefusedUpload asks for what cannot be done: nothing that is there is touched.
func TestRefusedUpload(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	hf := TargetFormat{Format: "hf"}
	for name, c := range map[string]struct {
		dst  string
		form TargetFormat
		keys []string
		set  map[string]string
		want string
	}{
		"a bucket": {dst: "s3://models", form: hf,
			want: "is a bucket, and not a folder or file in one"},
		"no such bucket": {dst: "s3://other/out", form: hf,
			want: "make the bucket other, or correct its name"},
		"no credentials": {dst: "s3://models/out", form: hf,
			set: map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
				"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/none"},
			want: "no credentials for http://127"},
		"a folder": {dst: "s3://models/out", form: hf, keys: []string{"out/x"},
			want: "s3://models/out is there already"},
		"deeper": {dst: "s3://models/out/", form: hf, keys: []string{"out/x/y"},
			want: "s3://models/out is there already"},
		"a file": {dst: "s3://models/out", form: hf, keys: []string{"out"},
			want: "s3://models/out is there already"},
		"file for file": {dst: "s3://models/m.pt", form: TargetFormat{Format: "pt"},
			keys: []string{"m.pt"}, want: "s3://models/m.pt is there already"},
		"folder for file": {dst: "s3://models/m.pt", form: TargetFormat{Format: "pt"},
			keys: []string{"m.pt/x"}, want: "s3://models/m.pt is there already"},
		"its manifest": {dst: "s3://models/m.pt", form: TargetFormat{Format: "pt"},
			keys: []string{"m.pt.shoal-manifest.json"}, want: "s3://models/m.pt is there already"},
		"another mark": {dst: "s3://models/out", form: hf, keys: []string{"out/.partial"},
			want: "is no mark of an unfinished checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			store := s3test.Start(t, nil)
			for name, value := range c.set {
				t.Setenv(name, value)
			}
			for _, key := range c.keys {
				store.Set(key, []byte("x"))
			}
			if _, err := sealedMove(t, small, c.dst, c.form); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if !slices.Equal(store.Keys(), c.keys) {
				t.Errorf("there are %q", store.Keys())
			}
		})
	}
	store := s3test.Start(t, nil)
	store.Set("out.pt", []byte("x"))
	store.Set("outer/x", []byte("x"))
	if _, err := sealedMove(t, small, "s3://models/out", hf); err != nil {
		t.Errorf("beside others whose names begin so: %v", err)
	}
	if _, err := sealedMove(t, small, "s3://models/out.p", TargetFormat{Format: "pt"}); err != nil {
		t.Errorf("beside others whose names begin so: %v", err)
	}
}

// TestSealInABucket seals what somebody else has put there.
func TestSealInABucket(t *testing.T) {
	store := s3test.Start(t, nil)
	small := filepath.Join(t.TempDir(), "small.safetensors")
	writeModel(t, small, rand.New(rand.NewPCG(1, 2)), 2, 4)
	text, err := os.ReadFile(small)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"folder/model.safetensors", "m.safetensors"} {
		store.Set(key, text)
	}
	for _, url := range []string{"s3://models/folder", "s3://models/m.safetensors"} {
		if _, err := Seal(t.Context(), openCheckpoint(t, url), 1); err != nil {
			t.Fatal(err)
		}
		if damage, _, err := Verify(t.Context(), url, 1); err != nil || len(damage) > 0 {
			t.Errorf("%v, %v", damage, err)
		}
		if _, err := Seal(t.Context(), openCheckpoint(t, url), 1); err == nil ||
			!strings.Contains(err.Error(), "is there already") {
			t.Errorf("twice: %v", err)
		}
	}
	store.Set("m.safetensors", append(text[:len(text)-1:len(text)-1], text[len(text)-1]^1))
	if damage, _, err := Verify(t.Context(), "s3://models/m.safetensors", 1); err != nil ||
		len(damage) == 0 {
		t.Errorf("damaged: %v, %v", damage, err)
	}
}

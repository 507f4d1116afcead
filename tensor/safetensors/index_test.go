package safetensors_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/tensor/safetensors"
)

const index = `{
  "metadata": {
    "total_size": 24
  },
  "weight_map": {
    "a\"b": "model-00001-of-00002.safetensors",
    "lm_head.weight": "model-00002-of-00002.safetensors"
  }
}
`

func TestIndex(t *testing.T) {
	ix, err := safetensors.ParseIndex(safetensors.IndexName, []byte(index))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{`a"b`: safetensors.ShardName(0, 2), "lm_head.weight": safetensors.ShardName(1, 2)}
	if !maps.Equal(ix.Files, want) {
		t.Errorf("%v, want %v", ix.Files, want)
	}
	if got := string(ix.AppendJSON(nil, 24)); got != index {
		t.Errorf("written as %s", got)
	}
}

func TestBadIndex(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{`{"weight_map":{"w":"../../etc/passwd"}}`, `tensor "w": the file "../../etc/passwd" is no plain file name`},
		{`{"weight_map":{"w":"/etc/passwd"}}`, `no plain file name`},
		{`{"weight_map":{"w":"a/b"}}`, `no plain file name`},
		{`{"weight_map":{"w":"a\\b"}}`, `no plain file name`},
		{`{"weight_map":{"w":"C:x"}}`, `no plain file name`},
		{`{"weight_map":{"w":".."}}`, `no plain file name`},
		{`{"weight_map":{"w":"."}}`, `no plain file name`},
		{`{"weight_map":{"w":""}}`, `no plain file name`},
		{`{"weight_map":{"w":"x\u0000y"}}`, `no plain file name`},
		{`{"weight_map":{"w":1}}`, `is no string`},
		{`{"weight_map":{"w":"a","w":"b"}}`, `the key "w" stands twice`},
		{`{"weight_map":{"w":"a"},"weight_map":{}}`, `stands twice`},
		{`{"weight_map":[]}`, `where { is due`},
		{`{"metadata":{"a":[{}]}}`, `has no weight_map`},
		{`{"weight_map":{}} {}`, `behind the JSON`},
		{"{\"weight_map\":{\"\xff\":\"a\"}}", `not UTF-8`},
		{`{"a":` + strings.Repeat("[", 100000), `broken JSON`},
		{``, `broken JSON`},
	} {
		_, err := safetensors.ParseIndex("x.json", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "x.json") {
			t.Errorf("%.60s: %v; want %q", c.text, err, c.err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(index))
	f.Fuzz(func(t *testing.T, text []byte) {
		ix, err := safetensors.ParseIndex("x", text)
		if err != nil {
			return
		}
		again, err := safetensors.ParseIndex("x", ix.AppendJSON(nil, 0))
		if err != nil || !maps.Equal(ix.Files, again.Files) {
			t.Fatalf("%v became %v: %v", ix, again, err)
		}
		for _, file := range ix.Files {
			if strings.ContainsAny(file, `/\`) || file == ".." {
				t.Fatalf("the index points out of its folder: %q", file)
			}
		}
	})
}

func TestSplit(t *testing.T) {
	of := func(n int) safetensors.Tensor { return safetensors.Tensor{DType: tensor.U8, Shape: tensor.Shape{n}} }
	files, err := safetensors.Split([]safetensors.Tensor{of(3), of(2), of(1), of(9), of(0), of(5)}, 5)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []string
	for _, f := range files {
		var s []string
		for _, x := range f {
			s = append(s, x.Shape.String())
		}
		sizes = append(sizes, strings.Join(s, ""))
	}
	if got := strings.Join(sizes, " "); got != "[3][2] [1] [9] [0][5]" {
		t.Errorf("split as %s", got)
	}
}

package safetensors_test

// This file tests indexes, made here and broken.
import (
	"bytes"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/tensor"
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

// readIndex reads the text of an index.
func readIndex(name string, text []byte) (*safetensors.Index, error) {
	return safetensors.ReadIndex(name, bytes.NewReader(text), int64(len(text)))
}

// TestIndexPasses has all kinds of values in an index that nobody wants, and more after it than a
// reader has in memory at a time.
func TestIndexPasses(t *testing.T) {
	for _, value := range []string{`null`, `true`, `false`, `-1.5e+3`, `"x\n"`, `[]`, `{}`,
		`[1,{"a":[null,"]"]},false]`, strings.Repeat("[", 90) + strings.Repeat("]", 90),
		`"` + strings.Repeat("x", 1<<20) + `"`} {
		ix, err := readIndex("x",
			[]byte(`{"a":`+value+`,"weight_map":{"w":"f"},"b": `+value+"}\n"+
				strings.Repeat(" ", 1<<17)+"\n"))
		if err != nil || len(ix.Files) != 1 || ix.Files["w"] != "f" {
			t.Errorf("%.50s: %v, %v", value, ix, err)
		}
	}
}

// TestMemoryOfIndex reads an index of 24 MiB with as many tensors as can be in it, and one of 48
// MiB with as many files, and counts all that the reader takes for them, also what it has given
// back.
func TestMemoryOfIndex(t *testing.T) {
	for _, c := range []struct {
		length    int
		file, err string
	}{{24 << 20, `"f"`, ""}, {48 << 20, `"%[1]x"`, "more than 536870912 bytes of memory"}} {
		b := []byte(`{"weight_map":{"":"f"`)
		for i := 0; len(b) < c.length; i++ {
			b = append(b, strings.ReplaceAll(`,"%[1]x":`+c.file, "%[1]x",
				strconv.FormatInt(int64(i), 16))...)
		}
		b = append(b, "}}"...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readIndex("x", b)
		runtime.ReadMemStats(&after)
		if c.err == "" && err != nil || c.err != "" &&
			(err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v; want %q", err, c.err)
		}
		took := after.TotalAlloc - before.TotalAlloc
		if t.Logf("%d MiB", took>>20); took > 768<<20 {
			t.Errorf("the reader took %d bytes altogether", took)
		}
	}
}

// TestIndex writes an index and reads it again.
func TestIndex(t *testing.T) {
	ix, err := readIndex(safetensors.IndexName, []byte(index))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{`a"b`: safetensors.ShardName(0, 2),
		"lm_head.weight": safetensors.ShardName(1, 2)}
	if !maps.Equal(ix.Files, want) {
		t.Errorf("%v, want %v", ix.Files, want)
	}
	if got := string(ix.AppendJSON(nil, 24)); got != index {
		t.Errorf("written as %s", got)
	}
}

// TestBadIndex says of broken indices what is wrong.
func TestBadIndex(t *testing.T) {
	for _, c := range []struct{ text, err string }{
		{`{"weight_map":{"w":"../../etc/passwd"}}`,
			`tensor "w": the file "../../etc/passwd" is no plain file name`},
		{`{"weight_map":{"w":"/etc/passwd"}}`, `no plain file name`},
		{`{"weight_map":{"w":"a/b"}}`, `no plain file name`},
		{`{"weight_map":{"w":"a\\b"}}`, `no plain file name`},
		{`{"weight_map":{"w":"C:x"}}`, `no plain file name`},
		{`{"weight_map":{"w":".."}}`, `no plain file name`},
		{`{"weight_map":{"w":"."}}`, `no plain file name`},
		{`{"weight_map":{"w":""}}`, `no plain file name`},
		{`{"weight_map":{"w":"x\u0000y"}}`, `no plain file name`},
		{`{"weight_map":{"w":1}}`, `is no string`},
		{`{"other":tfalse,"weight_map":{"w":"a"}}`, `"tf" where true is due`},
		{`{"weight_map":{"w":"a","w":"b"}}`, `the key "w" stands twice`},
		{`{"weight_map":{"w":"a"},"weight_map":{}}`, `stands twice`},
		{`{"weight_map":[]}`, `where { is due`},
		{`{"metadata":{"a":[{}]}}`, `has no weight_map`},
		{`{"weight_map":{}} {}`, `after the JSON`},
		{"{\"weight_map\":{\"\xff\":\"a\"}}", `not UTF-8`},
		{`{"a":` + strings.Repeat("[", 100000), `broken JSON`},
		{``, `broken JSON`},
		{`{"a":nul}`, `broken JSON: "nul}" where null is due`},
		{`{"a":x}`, `broken JSON`},
		{`{"a":[1}`, `where , is due`},
		{`{"weight_map":{"w":"` + strings.Repeat("a", 1<<17) + `"}}`,
			`a name of more than 65536 bytes`},
	} {
		_, err := readIndex("x.json", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.err) ||
			!strings.Contains(err.Error(), "x.json") {
			t.Errorf("%.60s: %v; want %q", c.text, err, c.err)
		}
	}
}

// FuzzIndex has any text as an index: it is refused, or read as Go's package for JSON reads it.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(index))
	f.Fuzz(func(t *testing.T, text []byte) {
		ix, err := readIndex("x", text)
		if err != nil {
			return
		}
		again, err := readIndex("x", ix.AppendJSON(nil, 0))
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

// TestSplit spreads tensors over files of at most so many bytes. Their order stays.
func TestSplit(t *testing.T) {
	of := func(n int) safetensors.Tensor {
		return safetensors.Tensor{DType: tensor.U8, Shape: tensor.Shape{n}}
	}
	files, err := safetensors.SplitFiles(
		[]safetensors.Tensor{of(3), of(2), of(1), of(9), of(0), of(5)},
		5)
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

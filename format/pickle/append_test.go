package pickle_test

// This file tests pickles that are written.
import (
	"bytes"
	"math/big"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/pickle"
)

// TestAppend writes values and reads them again.
func TestAppend(t *testing.T) {
	class := pickle.Global{Module: "a.b", Name: "C"}
	v := &pickle.Dict{Items: []pickle.Item{
		{Key: "numbers", Value: pickle.Tuple{int64(0), int64(-1), int64(1 << 31), int64(-1 << 63),
			new(big.Int).Lsh(big.NewInt(1), 63), new(big.Int).Lsh(big.NewInt(-1), 127), 0.5}},
		{Key: int64(3), Value: &pickle.List{
			Items: []any{nil, true, false, "é", []byte{0, 1, 255}}}},
		{Key: "call", Value: &pickle.Object{Class: class, Args: []any{int64(1)}, State: "s"}},
		{Key: "new", Value: pickle.New{Class: class, State: pickle.Tuple{}}},
		{Key: "global", Value: class}, {Key: "reference", Value: pickle.Reference{ID: "x"}},
		{Key: "member", Value: pickle.Member{Class: class, Name: "M"}},
		{Key: "empty", Value: pickle.Tuple{&pickle.List{}, &pickle.Dict{}, ""}},
	}}
	b, err := pickle.Append(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	o := pickle.Options{Globals: pickle.InertGlobals("a.b.C"),
		Persistent: func(id any) (any, error) {
			return pickle.Tuple{"at", id}, nil
		}}
	got, err := load(b, o)
	if err != nil {
		t.Fatal(err)
	}
	const want = "{s6e756d62657273: (0, -1, 2147483648, -9223372036854775808, " +
		"9223372036854775808, -170141183460469231731687303715884105728, f4602678819172646912), " +
		"3: [None, True, False, sc3a9, b0001ff], s63616c6c: a.b.C(1)s73, s6e6577: a.b.C()(), " +
		"s676c6f62616c: a.b.C, s7265666572656e6365: (s6174, s78), s6d656d626572: a.b.C.M, " +
		"s656d707479: ([], {}, s)}"
	if s := repr(got, 0); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	if again, _ := pickle.Append(nil, v); !bytes.Equal(again, b) {
		t.Error("the same values give other bytes")
	}
	loop := &pickle.List{}
	loop.Items = []any{loop}
	for name, bad := range map[string]any{"nested more than": loop, "cannot be written": struct{}{},
		"an integer of 256 bytes": new(big.Int).Lsh(big.NewInt(1), 2040)} {
		if _, err := pickle.Append(nil, bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

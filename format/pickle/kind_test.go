package pickle_test

// This file tests the names of types in messages.
import (
	"math/big"
	"testing"

	"github.com/shoal-ml/shoal/format/pickle"
)

// A tensor stands for a value of another package, which names its type itself.
type tensor struct{}

func (*tensor) Kind() string { return "torch.Tensor" }

// TestKind demands Python's names of types, and none of Go's.
func TestKind(t *testing.T) {
	class := pickle.Global{Module: "datetime", Name: "datetime"}
	for want, v := range map[string]any{
		"None": nil, "a bool": true, "an int": int64(1), "a float": 0.5, "a str": "",
		"a bytes": []byte{}, "a tuple": pickle.Tuple{}, "a list": &pickle.List{},
		"a dict": &pickle.Dict{},
		"a set":  &pickle.Set{}, "a frozenset": &pickle.Set{Frozen: true},
		"a numpy.ndarray": &pickle.Array{}, "a numpy.dtype": &pickle.NumpyType{},
		"an io.BytesIO":       &pickle.Buffer{},
		"a datetime.datetime": &pickle.Object{Class: class},
		"a slice": &pickle.Object{
			Class: pickle.Global{Module: "builtins", Name: "slice"}}, "a torch.Tensor": &tensor{},
		"a module.Enum": pickle.Member{Class: pickle.Global{Module: "module", Name: "Enum"},
			Name: "one"}, "an object": struct{}{},
	} {
		if got := pickle.KindWithArticle(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	if got := pickle.Kind(big.NewInt(1)); got != "int" {
		t.Errorf("a large integer is %s", got)
	}
}

package pickle_test

// This file tests pickles against Python, and with damage.
import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/format/pickle"
)

// repr writes a value as Python's repr does, so that both sides can be compared; an Object as its
// call and state. depth is how deep v is nested.
func repr(v any, depth int) string {
	if depth > 50 {
		return "..."
	}
	list := func(items []any) string {
		var s []string
		for _, x := range items {
			s = append(s, repr(x, depth+1))
		}
		return strings.Join(s, ", ")
	}
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case int64:
		return strconv.FormatInt(v, 10)
	case *big.Int:
		return v.String()
	case float64:
		switch {
		case math.IsNaN(v):
			return "nan"
		case math.IsInf(v, 0):
			return strings.TrimPrefix(strings.ToLower(fmt.Sprint(v)), "+")
		}
		return "f" + strconv.FormatUint(math.Float64bits(v), 10)
	case string:
		return "s" + fmt.Sprintf("%x", v)
	case []byte:
		return "b" + fmt.Sprintf("%x", v)
	case pickle.Tuple:
		return "(" + list(v) + ")"
	case *pickle.List:
		return "[" + list(v.Items) + "]"
	case *pickle.Set:
		return "{" + list(v.Items) + "}"
	case *pickle.Dict:
		var s []string
		for _, x := range v.Items {
			s = append(s, repr(x.Key, depth+1)+": "+repr(x.Value, depth+1))
		}
		return "{" + strings.Join(s, ", ") + "}"
	case *pickle.Array:
		return fmt.Sprintf("array(%s%s, %v, %x)", v.Type.Order, v.Type.Code, v.Shape, v.Data)
	case *pickle.Object:
		return v.Class.String() + "(" + list(v.Args) + ")" + repr(v.State, depth+1)
	case pickle.Global:
		return v.String()
	case pickle.Member:
		return v.String()
	}
	return fmt.Sprintf("%T?", v)
}

// corpus pickles values under each protocol and prints for each the pickle and the value in the
// notation of repr.
const corpus = `
import argparse, collections, pickle, random, struct, sys
seed = int(sys.argv[1]); rng = random.Random(seed)

def show(v):
    if v is None or isinstance(v, bool): return str(v)
    if isinstance(v, int): return str(v)
    if isinstance(v, float):
        if v != v: return "nan"
        if v in (float("inf"), float("-inf")): return str(v)
        return "f%d" % struct.unpack("<Q", struct.pack("<d", v))
    if isinstance(v, str): return "s" + v.encode().hex()
    if isinstance(v, (bytes, bytearray)): return "b" + v.hex()
    if isinstance(v, tuple): return "(" + ", ".join(map(show, v)) + ")"
    if isinstance(v, list): return "[" + ", ".join(map(show, v)) + "]"
    if isinstance(v, (set, frozenset)): return "{" + ", ".join(map(show, v)) + "}"
    if isinstance(v, dict): return "{" + ", ".join(show(k) + ": " + show(x) for k, x in v.items()) + "}"
    if isinstance(v, argparse.Namespace): return "argparse.Namespace()" + show(vars(v))
    raise TypeError(v)

def value(depth):
    kind = rng.randrange(16 if depth else 8)
    if kind == 0: return rng.choice([None, True, False])
    if kind == 1: return rng.randrange(-300, 70000)
    if kind == 2: return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, 200))
    if kind == 3: return rng.choice([0.0, -0.0, 1e300, float("inf"), float("nan"), rng.random()])
    if kind == 4: return "".join(chr(rng.choice([65, 10, 233, 0x4e2d, 0x1f600])) for _ in range(rng.randrange(5)))
    if kind == 5: return bytes(rng.randrange(256) for _ in range(rng.randrange(6)))
    if kind == 6: return bytearray(rng.randrange(256) for _ in range(rng.randrange(6)))
    if kind == 7: return "x" * rng.choice([255, 256, 300])
    some = [value(depth - 1) for _ in range(rng.randrange(5))]
    if kind == 8: return tuple(some)
    if kind == 9: return some
    if kind == 10: return {i if rng.randrange(2) else str(i): x for i, x in enumerate(some)}
    if kind == 11: return collections.OrderedDict((str(i), x) for i, x in enumerate(some))
    if kind == 12: return rng.choice([set, frozenset])([1] if some else [])
    if kind == 13: return collections.Counter(range(len(some)))
    if kind == 14: return collections.defaultdict(rng.choice([int, float, str, list, dict]), {i: x for i, x in enumerate(some)})
    return argparse.Namespace(a=some, b=some)

for protocol in (2, 3, 4, 5):
    for _ in range(100):
        v = value(4)
        print(pickle.dumps(v, protocol).hex(), show(v))
`

// TestPython compares values of every kind with what Python itself says that it pickled.
func TestPython(t *testing.T) {
	for _, seed := range []string{"1", "2"} {
		out, err := exec.Command("python3", "-c", corpus, seed).Output()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("there is no python3 on PATH to compare with")
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != 400 {
			t.Fatalf("%d values", len(lines))
		}
		for _, line := range lines {
			text, want, _ := strings.Cut(line, " ")
			v, err := load(unhex(t, text), pickle.Options{})
			if err != nil {
				t.Errorf("seed %s: %v: %.300s", seed, err, text)
			} else if got := repr(v, 0); got != want {
				t.Errorf("seed %s: read %s, Python has %s", seed, got, want)
			}
		}
	}
}

// unhex returns the bytes of hexadecimal digits. It stops the test if they are none.
func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// load reads a pickle as the file data.pkl.
func load(b []byte, o pickle.Options) (any, error) {
	o.File = "data.pkl"
	return pickle.Load(b, o)
}

// TestNumpy reads arrays and scalars of NumPy.
func TestNumpy(t *testing.T) {
	// pickle.dumps((np.arange(3, dtype="<u4"), np.float64(1.5), np.int16(-2), np.bool_(True)), 2)
	const text = "800228636e756d70792e636f72652e6d756c746961727261790a5f7265636f6e7374727563740" +
		"a7100636e756d70790a6e6461727261790a71014b00" +
		"857102635f636f646563730a656e636f64650a7103580100000062710458060000006c6174696e31710586" +
		"7106527107877108527109284b014b0385" +
		"710a636e756d70790a64747970650a710b58020000007534710c898887710d52710e284b0358010000003c" +
		"710f4e4e4e4affffffff4affffffff4b00" +
		"74711062896803580c0000000000000001000000020000007111680586711252711374711462636e756d70" +
		"792e636f72652e6d756c74696172726179" +
		"0a7363616c61720a7115680b5802000000663871168988877117527118284b03680f4e4e4e4affffffff4a" +
		"ffffffff4b007471196268035809000000" +
		"000000000000c3b83f711a680586711b52711c86711d52711e6815680b58020000006932711f8988877120" +
		"527121284b03680f4e4e4e4affffffff4a" +
		"ffffffff4b007471226268035804000000c3bec3bf712368058671245271258671265271276815680b5802" +
		"00000062317128898887712952712a284b" +
		"0358010000007c712b4e4e4e4affffffff4affffffff4b0074712c626803580100000001712d680586712e" +
		"52712f8671305271317471322e"
	v, err := load(unhex(t, text), pickle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "(array(<u4, [3], 000000000100000002000000), f4609434218613702656, -2, True)"
	if got := repr(v, 0); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestNumpyOfProtocol5 reads arrays that protocol 5 makes of their bytes at once.
func TestNumpyOfProtocol5(t *testing.T) {
	// The third is an array of two bytes that must not be written to. All are of
	// pickle.dumps((np.arange(3, dtype="<u4"), np.asfortranarray([[0, 1], [2, 3]], ">i2"), x), 5)
	const text = "80059503010000000000008c136e756d70792e5f636f72652e6e756d65726963948c0b5f6672" +
		"6f6d62756666657294939428960c00000000000000000000000100000002000000948c056e756d707994" +
		"8c0564747970659493948c02753494898887945294284b038c013c944e4e4e4affffffff4affffffff4b" +
		"007494624b0385948c0143947494529468022896080000000000000000000002000100039468068c0269" +
		"3294898887945294284b038c013e944e4e4e4affffffff4affffffff4b007494624b024b0286948c0146" +
		"9474945294680228430200019468068c02753194898887945294284b038c017c944e4e4e4affffffff4a" +
		"ffffffff4b007494624b028594680d7494529487942e"
	v, err := load(unhex(t, text), pickle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "(array(<u4, [3], 000000000100000002000000), " +
		"array(>i2, [2 2], 0000000200010003), array(|u1, [2], 0001))"
	got := repr(v, 0)
	if got != want || !v.(pickle.Tuple)[1].(*pickle.Array).Fortran {
		t.Errorf("%s, want %s", got, want)
	}
	changed := strings.Replace(text, "8c0143", "8c014b", 1)
	if _, err = load(unhex(t, changed), pickle.Options{}); err == nil ||
		!strings.Contains(err.Error(), "of order K; if the file is yours, save it again") {
		t.Errorf("another order: %v", err)
	}
}

// TestNumpyTexts reads scalars of NumPy that are a half, texts and bytes.
func TestNumpyTexts(t *testing.T) {
	// pickle.dumps((np.float16(-1.5), np.str_("hé🐟"), np.str_(""), np.bytes_(b"a\0b"),
	// np.bytes_(b"")), 2)
	const text = "800228636e756d70792e5f636f72652e6d756c746961727261790a7363616c61720a7100636e" +
		"756d70790a64747970650a71015802000000663271028988877103527104284b035801000000" +
		"3c71054e4e4e4affffffff4affffffff4b0074710662635f636f646563730a656e636f64650a" +
		"7107580300000000c2be710858060000006c6174696e31710986710a52710b86710c52710d68" +
		"00680158020000005533710e898887710f527110284b0368054e4e4e4b0c4b044b0874711162" +
		"6807580e00000068000000c3a90000001fc3b401007112680986711352711486711552711668" +
		"0068015802000000553071178988877118527119284b0368054e4e4e4b004b044b0874711a62" +
		"635f5f6275696c74696e5f5f0a62797465730a711b2952711c86711d52711e68006801580200" +
		"00005333711f8988877120527121284b0358010000007c71224e4e4e4b034b014b0074712362" +
		"6807580300000061006271246809867125527126867127527128680068015802000000533071" +
		"29898887712a52712b284b0368224e4e4e4b004b014b0074712c62681c86712d52712e74712f" +
		"2e"
	for _, c := range []struct{ text, err string }{
		{text, ""},
		// the third character is beyond those of Unicode, or half of one
		{strings.Replace(text, "1fc3b40100", "1fc3b41100", 1), "is no character"},
		{strings.Replace(text, "1fc3b40100", "00c3980000", 1), "is no character"},
	} {
		v, err := load(unhex(t, c.text), pickle.Options{})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %s", err, c.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		const want = "(f13832806255468478464, s68c3a9f09f909f, s, b610062, b)"
		if got := repr(v, 0); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestRefuses says of broken pickles what is wrong, and where.
func TestRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, err string }{
		{"os.system", "\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
			"byte 2: the pickle asks for os.system"},
		{"posix.system", "\x80\x04\x8c\x05posix\x8c\x06system\x93.",
			"byte 17: the pickle asks for posix.system"},
		{"builtins.eval", "\x80\x02c__builtin__\neval\n.", "asks for builtins.eval"},
		{"builtins.getattr of a value",
			"\x80\x02cbuiltins\ngetattr\nX\x01\x00\x00\x00aX\x01\x00\x00\x00b\x86R.",
			"builtins.getattr: it is known for members of classes only"},
		{"builtins.getattr of an unknown class",
			"\x80\x02cbuiltins\ngetattr\ncos\npath\nX\x01\x00\x00\x00b\x86R.", "asks for os.path"},
		{"a call of a member",
			"\x80\x02cbuiltins\ngetattr\ncargparse\nNamespace\nX\x01\x00\x00\x00b\x86R)R.",
			"which is no global"},
		{"a dotted name", "\x80\x04\x8c\x08builtins\x8c\x0dint.__class__\x93.",
			"asks for builtins.int.__class__"},
		{"a call of a name", "\x80\x02cbuiltins\nint\n)R.",
			"a call of builtins.int, which is known by name only"},
		{"a call of a value", "\x80\x02K\x01)R.", "a call of an int, which is no global"},
		{"a call without a tuple", "\x80\x02cbuiltins\nlist\nK\x01R.", "instead of a tuple"},
		{"a list from a text", "\x80\x02cbuiltins\nlist\nX\x01\x00\x00\x00a\x85R.",
			"builtins.list: it takes a list"},
		{"state of a list", "\x80\x02]K\x01b.", "takes none"},
		{"an instance", "\x80\x02(ios\nsystem\n.", "instruction 0x69 is none"},
		{"an extension", "\x80\x02\x82\x01.", "instruction 0x82 is none"},
		{"a buffer out of band", "\x80\x05\x97.", "instruction 0x97 is none"},
		{"protocol 0", "I1\n.", "instruction 0x49 is none"},
		{"protocol 6", "\x80\x06N.", "protocol 6; shoal reads 2 to 5"},
		{"a reference", "\x80\x02K\x01Q.", "a reference to data outside"},
		{"nothing", "", "byte 0: 1 bytes are due and 0 are left"},
		{"no end", "\x80\x02N", "byte 3: 1 bytes are due"},
		{"two values", "\x80\x02NN.", "ends with 2 values"},
		{"a mark at the end", "\x80\x02N(.", "1 marks on the stack"},
		{"a value under a mark", "\x80\x02N(0.", "too little on the stack"},
		{"no value", "\x80\x02.", "ends with 0 values"},
		{"more", "\x80\x02N.N", "byte 4: 1 bytes after the end"},
		{"no mark", "\x80\x02t.", "no mark"},
		{"an empty memo", "\x80\x02h\x00.", "the memo has nothing under 0"},
		{"a long text", "\x80\x02X\xff\xff\xff\xffa.", "4294967295 bytes are due and 2 are left"},
		{"a longer text", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
			"18446744073709551615 bytes are due"},
		{"a text of bytes", "\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"},
		{"a long integer", "\x80\x02\x8b\x01\x08\x00\x00" + strings.Repeat("a", 2049) + ".",
			"an integer of 2049 bytes"},
		{"an odd dict", "\x80\x02}(K\x01u.", "1 keys and values"},
		{"items of a number", "\x80\x02K\x01(K\x01e.", "added to an int"},
		{"an endless name", "\x80\x02c" + strings.Repeat("a", 5000),
			"a name of more than 1024 bytes"},
		{"encode beyond Latin-1",
			"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xe4\xb8\xadX\x06\x00\x00\x00latin1\x86R.",
			"not in Latin-1"},
	} {
		_, err := load([]byte(c.text), pickle.Options{})
		var at *pickle.Error
		if err == nil || !strings.Contains(err.Error(), c.err) || !errors.As(err, &at) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
	_, err := load([]byte("\x80\x02cos\nsystem\n."), pickle.Options{Offset: 100})
	var unknown *pickle.UnknownGlobal
	if !errors.As(err, &unknown) ||
		unknown.Global != (pickle.Global{Module: "os", Name: "system"}) ||
		!strings.Contains(err.Error(), "data.pkl, byte 102") {
		t.Errorf("%v", err)
	}
}

// bombs are short pickles of values that need much memory.
var bombs = map[string]string{
	"many lists": "\x80\x02(" + strings.Repeat("]", 100_000) + "t.",
	"doubling list": "\x80\x02]q\x00(" + strings.Repeat("K\x01", 1000) + "e" +
		strings.Repeat("0cbuiltins\nlist\nh\x00\x85R", 2000) + ".",
	"copied bytes": "\x80\x02c_codecs\nencode\nq\x00X\xff\xff\x00\x00" +
		strings.Repeat("a", 65535) + "q\x010" +
		strings.Repeat("h\x00h\x01X\x06\x00\x00\x00latin1\x86R0", 2000) + ".",
	"a large memo": "\x80\x02N" + strings.Repeat("\x94", 200_000) + ".",
	"many marks":   "\x80\x02" + strings.Repeat("(", 200_000) + ".",
}

// TestBombs refuses short pickles that would take much memory.
func TestBombs(t *testing.T) {
	for name, text := range bombs {
		want := "more than 1048576 bytes of memory"
		if name == "many marks" {
			want = "more than 65536 marks"
		}
		_, err := load([]byte(text), pickle.Options{Memory: 1 << 20})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGlobals has the lists of globals and the references that a caller allows. Calls and
// references become the values that these give for them.
func TestGlobals(t *testing.T) {
	o := pickle.Options{
		Globals:    pickle.InertGlobals("a.b.C"),
		More:       pickle.NameGlobals("d.e", "a.b.C"), // of which the class is known already
		Persistent: func(id any) (any, error) { return pickle.Tuple{"at", id}, nil },
	}
	v, err := load([]byte(
		"\x80\x02(ca.b\nC\nK\x01\x85RX\x01\x00\x00\x00xbcd\ne\nK\x05Qca.b\nC\n)\x81t."), o)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := repr(v, 0), "(a.b.C(1)s78, d.e, (s6174, 5), a.b.C()None)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestDict finds the last value of a key that is set twice.
func TestDict(t *testing.T) {
	v, err := load([]byte("\x80\x02}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02K\x03K\x04u."),
		pickle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := v.(*pickle.Dict)
	if a, ok := d.Get("a"); !ok || a != int64(2) || len(d.Items) != 3 {
		t.Errorf("a = %v of %v; to Python the last one counts", a, d.Items)
	}
	if _, ok := d.Get("b"); ok {
		t.Error("b is there")
	}
}

// FuzzLoad has any bytes as a pickle: nothing panics, and what is read can be written and read
// again.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01\x85q\x02h\x00(K\x01M\x01\x02J\x01\x02\x03" +
			"\x04lu.",
		"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x0bcollections\x8c\x0bOrderedDict\x93" +
			")R\x94(\x8c\x01a\x88\x8a\x02\x01\x02G\x01\x02\x03\x04\x05\x06\x07\x08u.",
		"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f8\x89\x88\x87R(K\x03X\x01\x00\x00\x00<NNNJ" +
			"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
		"\x80\x05\x8f(K\x01\x90(K\x01\x91\x86cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00xNsb" +
			"\x86.",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := load(b, pickle.Options{Memory: 1 << 20, Persistent: func(id any) (any, error) {
			return id, nil
		}})
		if err == nil {
			_ = repr(v, 45) // whatever was built can be walked
		} else if at := (*pickle.Error)(nil); !errors.As(err, &at) || at.Offset > int64(len(b)) {
			t.Fatalf("an error without its place: %v", err)
		}
	})
}

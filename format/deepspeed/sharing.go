package deepspeed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed/patterns"
	"github.com/shoal-ml/shoal/internal/shorten"
)

// This file knows how tensor parallel ranks share parameters, for reader and writer: no I/O.

// infoKey is where programs say in the model states how tensor parallel ranks share parameters.
// DeepSpeed's own converter, ds_to_universal, uses it, and so does shoal.
const infoKey = "universal_checkpoint_info"

// Keys below it. The first are lists of patterns, which fit names of parameters.
const (
	replicatedKey  = "tp_replicated_parameter_patterns"
	averagedKey    = "parameter_to_average_patterns"
	halvesKey      = "parameter_with_2_sub_params_cat_dim_0"
	columnsKey     = "parameter_with_row_parallelism_patterns"
	vocabularyKey  = "vocabulary_parameter_patterns"
	subParamsKey   = "parameter_with_sub_params"             // dicts, each with patterns
	unsupportedKey = "autotp_unsupported_parameter_patterns" // a dict, by patterns: reasons
	widthsKey      = "sub_param_shard_widths"                // a dict, by patterns of subParamsKey
	versionKey     = "universal_checkpoint_version"
	originalKey    = "original_vocab_size"
	paddedKey      = "padded_vocab_size"
	expertsKey     = "expert_parameter_patterns"
)

// sharingKeys lists all keys that count.
var sharingKeys = []string{
	replicatedKey, averagedKey, halvesKey, columnsKey, vocabularyKey, subParamsKey, unsupportedKey,
	widthsKey, versionKey, originalKey, paddedKey, expertsKey,
}

// widthsVersion is the version of universal_checkpoint_info from which on widthsKey is required,
// and AutoTP names all parameters that ranks have alike.
const widthsVersion = 0.4

// A sharing says how tensor parallel ranks share a parameter.
type sharing struct {
	// whether all have it whole instead of a part; averaged if DeepSpeed takes their mean
	alike, averaged bool
	dim, blocks     int        // dimension and number of blocks of an even cut
	sub             *subParams // sub-parameters; nil = an even cut
	pattern         string     // pattern by which sub was found
	vocabulary      bool       // whether padding rows of the vocabulary are left out
	// whether no pattern matches, so that the default cut applies.
	unmatched bool
}

// A rules is the content of universal_checkpoint_info. It does no I/O, and is for one goroutine at
// a time: sharingOf, too, changes it, as it keeps results and counts the use of patterns.
type rules struct {
	values  map[string]any           // values by the path below infoKey
	lists   []*patterns.List         // all lists of patterns, each of a key
	subs    []*subParams             // sub-parameters for each pattern in the list of subParamsKey
	version float64                  // that of versionKey; 0 = not stated
	effort  *patterns.Effort         // bound on the cost of all lists
	found   map[string]cachedSharing // results of sharingOf, by name
	// whether it says anything about how tensor parallel parts fit together.
	saysSharing bool
}

// A cachedSharing is the result of the rules for a parameter.
type cachedSharing struct {
	sharing
	err error
}

// parseRules reads universal_checkpoint_info from the values of a checkpoint. It returns nil where
// there is none.
func parseRules(values []format.Value) (*rules, error) {
	r := &rules{values: map[string]any{}, effort: patterns.NewEffort(infoKey),
		found: map[string]cachedSharing{}}
	for _, v := range values {
		if path, ok := strings.CutPrefix(v.Path, infoKey+"."); ok {
			r.values[path] = v.Data
		}
	}
	if len(r.values) == 0 {
		return nil, nil
	}
	for _, key := range []string{replicatedKey, averagedKey, halvesKey, columnsKey, vocabularyKey} {
		l := r.newList(key)
		is, there := r.values[key]
		r.saysSharing = r.saysSharing || there && key != vocabularyKey
		if err := addPatterns(l, is); err != nil {
			return nil, err
		}
	}
	switch v := r.values[versionKey].(type) {
	case float64:
		r.version = v
	case int64:
		r.version = float64(v)
	}
	several, err := r.readSubParams()
	if err != nil {
		return nil, err
	}
	l := r.newList(unsupportedKey)
	for _, path := range pathsBelow(r.values, unsupportedKey) {
		if err := l.Add(path); err != nil {
			return nil, err
		}
	}
	r.saysSharing = r.saysSharing || several || len(l.Texts) > 0
	return r, nil
}

// newList returns an empty list of patterns, which it adds to the lists of the rules.
func (r *rules) newList(key string) *patterns.List {
	l := patterns.NewList(key, r.effort)
	r.lists = append(r.lists, l)
	return l
}

// addPatterns adds the patterns of a value to a list; nil has none.
func addPatterns(l *patterns.List, v any) error {
	list, ok := v.([]any)
	if !ok && v != nil {
		return fmt.Errorf("%s.%s is a %T, and a list of patterns is due", infoKey, l.Key, v)
	}
	for _, x := range list {
		text, ok := x.(string)
		if !ok {
			return fmt.Errorf("%s.%s has a %T, and patterns are texts", infoKey, l.Key, x)
		}
		if err := l.Add(text); err != nil {
			return err
		}
	}
	return nil
}

// pathsBelow returns the paths that said has below a key, without the key, ascending.
func pathsBelow(said map[string]any, key string) (paths []string) {
	for path := range said {
		if below, ok := strings.CutPrefix(path, key+"."); ok {
			paths = append(paths, below)
		}
	}
	slices.Sort(paths)
	return paths
}

// sharingOf returns how the parameter of a name is shared; it searches once for each name. It fails
// where the patterns contradict each other, or say what DeepSpeed cannot join.
func (r *rules) sharingOf(name string) (sharing, error) {
	f, known := r.found[name]
	if !known {
		f.sharing, f.err = r.findSharing(name)
		r.found[name] = f
	}
	return f.sharing, f.err
}

// findSharing searches the lists in DeepSpeed's order: the first list with a matching pattern
// counts, and only one of its patterns may match.
func (r *rules) findSharing(name string) (s sharing, err error) {
	fits := map[string][]string{}
	var sub *subParams
	for _, l := range r.lists {
		fitting, err := l.Match(name)
		if err != nil {
			return s, err
		}
		for _, i := range fitting {
			fits[l.Key] = append(fits[l.Key], l.Texts[i])
		}
		if l.Key == subParamsKey && len(fitting) > 0 { // of these the first counts
			sub = r.subs[fitting[0]]
		}
	}
	one := func(key string) bool {
		if two := fits[key]; len(two) > 1 && err == nil {
			err = fmt.Errorf(
				"two patterns of %s.%s fit it, %.200q and %.200q, and DeepSpeed wants one", infoKey,
				key, two[0], two[1])
		}
		return len(fits[key]) > 0
	}
	if why := fits[unsupportedKey]; len(why) > 0 {
		return s, fmt.Errorf("DeepSpeed says of it that %s (%s.%s)",
			shortText(r.values[unsupportedKey+"."+why[0]]), infoKey, unsupportedKey)
	}
	s.blocks = 1
	switch {
	case one(replicatedKey):
		s.alike = true
	case one(averagedKey):
		s.averaged = true
	case one(halvesKey):
		s.blocks = 2
	case sub != nil:
		s.sub, s.pattern = sub, fits[subParamsKey][0]
	case one(columnsKey):
		s.dim = 1
	default:
		s.unmatched = true
	}
	if one(vocabularyKey) {
		s.vocabulary, s.unmatched = true, false
	}
	return s, err
}

// checkAllUsed fails when a pattern matched no name: then the names differ from those that the
// program expected, and what the pattern meant would get the default cut.
func (r *rules) checkAllUsed() error {
	for _, l := range r.lists {
		if i := slices.Index(l.Used, false); i >= 0 && l.Key != unsupportedKey {
			return fmt.Errorf("the pattern %.200q of %s.%s fits no parameter, for which "+
				"DeepSpeed's ds_to_universal refuses the checkpoint; with its --no_strict it "+
				"does not", l.Texts[i], infoKey, l.Key)
		}
	}
	return nil
}

// checkVersion fails for what DeepSpeed's AutoTP says before 0.19.6: it names none of the
// parameters that it leaves alone, which all ranks have alike, and of fused ones not how it cuts
// them. All its patterns are of one name, and it gives a version.
func (r *rules) checkVersion() error {
	if _, said := r.values[versionKey]; !said || r.version >= widthsVersion {
		return nil
	}
	for _, l := range r.lists {
		if !l.IsExact() {
			return nil
		}
	}
	return fmt.Errorf("%s is of the version %v, as AutoTP of DeepSpeed before 0.19.6 writes it, "+
		"which does not say of all parameters how they are cut; save it with a newer DeepSpeed",
		infoKey, r.version)
}

// cutOf returns how a parameter is cut over ranks, given how it is shared and its parts.
func (r *rules) cutOf(s sharing, parts []format.Part, ranks int) (format.Cut, error) {
	if s.sub == nil {
		return format.CutBlocks(parts, ranks, s.dim, s.blocks)
	}
	even, err := format.CutBlocks(parts, ranks, s.sub.dim, 1)
	if err != nil {
		return even, err
	}
	c := format.Cut{Dim: s.sub.dim}
	whole := slices.Clone(parts[0].Shape)
	whole[c.Dim] = 0
	for _, n := range even.Widths[0] {
		whole[c.Dim] += n
	}
	sizes, err := s.sub.sizesIn(whole)
	if err != nil {
		return c, err
	}
	if r.version >= widthsVersion {
		c.Widths, err = r.statedWidths(s, sizes, ranks)
		return c, err
	}
	for _, n := range sizes {
		if n%ranks != 0 {
			return c, fmt.Errorf("one of its sub-parameters is %d long, which %d ranks cannot "+
				"have shared evenly, and there is no %s.%s", n, ranks, infoKey, widthsKey)
		}
		c.Widths = append(c.Widths, slices.Repeat([]int{n / ranks}, ranks))
	}
	return c, nil
}

// cropVocabulary removes the padding rows of the vocabulary from t. It fails where it is not
// certain that these are at its end.
func (r *rules) cropVocabulary(t *format.Tensor) error {
	original, said := r.values[originalKey].(int64)
	padded, known := r.values[paddedKey].(int64)
	if !said || original < 1 {
		return fmt.Errorf("%s.%s has it, and does not say how large the vocabulary is (%s)",
			infoKey, vocabularyKey, originalKey)
	}
	if len(t.Shape) < 2 {
		return fmt.Errorf("%s.%s has it, and it has the shape %v; DeepSpeed fills up matrices only",
			infoKey, vocabularyKey, t.Shape)
	}
	rows := int64(t.Shape[0])
	switch {
	case known && rows != padded:
		return fmt.Errorf("its parts come to %d rows, and %s.%s says that there are %d", rows,
			infoKey, paddedKey, padded)
	case rows <= original:
		return nil
	case !known:
		return fmt.Errorf("its parts come to %d rows, more than %s.%s says, %d, and no %s says "+
			"that these fill it up; DeepSpeed's ds_to_universal cuts them off", rows, infoKey,
			originalKey, original, paddedKey)
	}
	t.Crop(0, int(original))
	return nil
}

// shortText formats a value as a text of limited length.
func shortText(v any) string { return shorten.Text(fmt.Sprint(v), 200) }

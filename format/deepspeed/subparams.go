package deepspeed

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/format/deepspeed/patterns"
	"github.com/shoal-ml/shoal/tensor"
)

// This file knows parameters that are fused of several: its rules' goroutine, no I/O.

// A subParams is the consecutive sub-parameters of a parameter along a dimension, such as q, k and
// v, each of which is cut separately.
type subParams struct {
	dim   int
	shape []int // shape of the parameter; -1 where it is not stated, and at dim
	sizes []int // sizes of the sub-parameters
	count int   // number of equal sub-parameters, where their sizes are not stated
	said  []any // shape as it is stated
}

// readSubParams reads the sub-parameters of all patterns into the rules, and reports whether the
// key is there.
func (r *rules) readSubParams() (there bool, err error) {
	l := r.newList(subParamsKey)
	if is, flat := r.values[subParamsKey]; flat {
		if list, ok := is.([]any); !ok || len(list) > 0 {
			return true, fmt.Errorf("%s.%s is no list of dicts", infoKey, subParamsKey)
		}
		return true, nil
	}
	n := 0
	for ; ; n++ {
		at := subParamsKey + "." + strconv.Itoa(n) + "."
		list, ok := r.values[at+"patterns"]
		if !ok {
			break
		}
		s, err := parseSubParams(r.values[at+"shape"], r.values[at+"partition_dim"])
		if err == nil {
			err = addPatterns(l, list)
		}
		if err != nil {
			return true, fmt.Errorf("%s.%s, number %d: %w", infoKey, subParamsKey, n, err)
		}
		for len(r.subs) < len(l.Texts) {
			r.subs = append(r.subs, s)
		}
	}
	if below := len(pathsBelow(r.values, subParamsKey)); below != 3*n {
		return true, fmt.Errorf(
			"%s.%s is no list of dicts with patterns, shape and partition_dim alone", infoKey,
			subParamsKey)
	}
	return n > 0, nil
}

// parseSubParams reads what a pattern says of sub-parameters: the shape, with their sizes or their
// number at one dimension, and this dimension.
func parseSubParams(shape, dim any) (*subParams, error) {
	s := &subParams{}
	var ok bool
	d, isDim := dim.(int64)
	if s.said, ok = shape.([]any); !ok || !isDim || d < 0 || d >= int64(len(s.said)) {
		return nil, fmt.Errorf("partition_dim is %v, and the shape %s", shortText(dim),
			shortText(shape))
	}
	s.dim = int(d)
	for i, x := range s.said {
		n, isNumber := x.(int64)
		list, isList := parseSizes(x)
		switch {
		case i == s.dim && isList && len(list) > 0:
			s.sizes = list
			n = -1
		case i == s.dim && isNumber && n > 0 && n <= patterns.MaxBytes:
			s.count = int(n)
			n = -1
		case i == s.dim || isList:
			return nil, fmt.Errorf(
				"the shape %s has no sizes of sub-parameters, or those of other dimensions",
				shortText(s.said))
		case x == nil:
			n = -1
		case !isNumber || n < -1 || int64(int(n)) != n:
			return nil, fmt.Errorf("the shape %s has %s in it", shortText(s.said), shortText(x))
		}
		s.shape = append(s.shape, int(n))
	}
	return s, nil
}

// sizesIn returns the sizes of the sub-parameters in a parameter of this shape. It fails where the
// parameter does not have the stated shape.
func (s *subParams) sizesIn(whole tensor.Shape) ([]int, error) {
	fits := len(whole) == len(s.shape)
	for i := range s.shape {
		fits = fits && (s.shape[i] < 0 || s.shape[i] == whole[i])
	}
	if !fits {
		return nil, fmt.Errorf("%s.%s says that it is of the shape %s, and its parts come to %v",
			infoKey, subParamsKey, shortText(s.said), whole)
	}
	n := whole[s.dim]
	switch {
	case s.count > 0 && n%s.count == 0:
		return slices.Repeat([]int{n / s.count}, s.count), nil
	case s.count == 0 && sumsTo(s.sizes, n):
		return s.sizes, nil
	}
	return nil, fmt.Errorf(
		"%s.%s says that its sub-parameters are %s along dimension %d, and its parts come to %v",
		infoKey, subParamsKey, shortText(s.said[s.dim]), s.dim, whole)
}

// statedWidths returns the widths that ranks have of each sub-parameter, as the rules state them.
func (r *rules) statedWidths(s sharing, sizes []int, ranks int) (widths [][]int, err error) {
	bad := func(text string, args ...any) ([][]int, error) {
		return nil, fmt.Errorf("%s.%s of the pattern %.200q: %s", infoKey, widthsKey, s.pattern,
			fmt.Sprintf(text, args...))
	}
	said, there := r.values[widthsKey+"."+s.pattern]
	list, ok := said.([]any)
	if !there || !ok || len(list) != len(sizes) {
		return bad("widths of %d sub-parameters are due, and there is %s", len(sizes),
			shortText(said))
	}
	for i, x := range list {
		own, ok := parseSizes(x)
		if !ok || len(own) != ranks {
			return bad("%s are not the widths of %d ranks", shortText(x), ranks)
		}
		if !sumsTo(own, sizes[i]) {
			return bad("%v do not come to the %d of the sub-parameter", own, sizes[i])
		}
		widths = append(widths, own)
	}
	return widths, nil
}

// sumsTo reports whether numbers that are not negative have a sum.
func sumsTo(list []int, sum int) bool {
	for _, n := range list {
		if sum -= n; sum < 0 {
			return false
		}
	}
	return sum == 0
}

// parseSizes reads a list of numbers that are not negative; false if v is anything else.
func parseSizes(v any) (list []int, ok bool) {
	items, ok := v.([]any)
	for _, x := range items {
		n, is := x.(int64)
		if !is || n < 0 || int64(int(n)) != n {
			return nil, false
		}
		list = append(list, int(n))
	}
	return list, ok
}

package layouttest

import "github.com/shoal-ml/shoal/state/layout"

// The arrays of the oracle. The functions are pure, and panic where an array lacks the dimension.

// wholeTensor returns all elements of the tensor with number i.
func wholeTensor(tensors []layout.Tensor, i int) Array {
	n := product(tensors[i].Shape)
	a := Array{append([]int{}, tensors[i].Shape...), make([]Element, n)}
	for k := range a.Data {
		a.Data[k] = Element{i, k}
	}
	return a
}

// product returns the number of elements of a shape.
func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// narrow returns the part of an array at the indices from up to, not including, to of a dimension.
func narrow(a Array, dim, from, to int) Array {
	out := Array{append([]int{}, a.Shape...), nil}
	out.Shape[dim] = to - from
	inner := product(a.Shape[dim+1:])
	for i, e := range a.Data {
		if at := i / inner % a.Shape[dim]; at >= from && at < to {
			out.Data = append(out.Data, e)
		}
	}
	return out
}

// concatenate returns arrays side by side in a dimension; of one, which need not have it, nothing
// is to be done.
func concatenate(parts []Array, dim int) Array {
	if len(parts) == 1 {
		return parts[0]
	}
	out := Array{append([]int{}, parts[0].Shape...), nil}
	out.Shape[dim] = 0
	for _, p := range parts {
		out.Shape[dim] += p.Shape[dim]
	}
	for outer := range product(out.Shape[:dim]) {
		for _, p := range parts {
			n := product(p.Shape[dim:])
			out.Data = append(out.Data, p.Data[outer*n:][:n]...)
		}
	}
	return out
}

// pad returns an array whose dimension dim is extended to n indices, by Padding.
func pad(a Array, dim, n int) Array {
	fill := Array{append([]int{}, a.Shape...), nil}
	fill.Shape[dim] = n - a.Shape[dim]
	for range product(fill.Shape) {
		fill.Data = append(fill.Data, Padding)
	}
	return concatenate([]Array{a, fill}, dim)
}

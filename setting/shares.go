package setting

// MoveShares returns the shares of work of a job whose members change, where from has by new rank
// the rank before, an index of shares, and -1 for who is new: those who stay keep theirs, and who
// is new gets the mean of these. nil = they cannot be unequal, because nobody stays who works, or
// there are more than MaxShares. Shares stay as they are.
func MoveShares(shares []uint16, from []int) (moved []uint16) {
	sum, stay := 0, 0
	for _, rank := range from {
		if rank >= 0 {
			sum, stay = sum+int(shares[rank]), stay+1
		}
	}
	if sum == 0 || len(from) > MaxShares {
		return nil
	}
	for _, rank := range from {
		if rank >= 0 {
			moved = append(moved, shares[rank])
		} else {
			moved = append(moved, uint16((sum+stay/2)/stay))
		}
	}
	return moved
}
